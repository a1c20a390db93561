"""A recipe for several ranks, and the run that one process makes of it."""

import pytest
import yaml

from tests.launch.runs import ROOT, by_one
from tests.stages.start import start
from tests.stages.tiny import TREE, tiny
from tests.warm import MARK


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe of RL steps from a policy that has learned a little."""
    folder = tmp_path_factory.mktemp("launch")
    (folder / "start").mkdir()
    (folder / "start" / "model").symlink_to(str(tiny(overrides=[start()]).model.path))
    path = folder / "recipe.yaml"
    train = {**TREE["train"], "micro_batch_tokens": 256}  # ranks have several micro-batches, and not equally many
    path.write_text(yaml.safe_dump({**TREE, "train": train, "output": str(folder / "runs")}))
    return path


@pytest.fixture(scope="module")
def alone(recipe):
    """The run's folder, trained by one process that nobody launched."""
    return by_one(recipe, "alone")


@pytest.fixture(autouse=True)
def owner(tmp_path, monkeypatch):
    """What marks every process that this test starts."""
    monkeypatch.delenv("FUSE", raising=False)
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.chdir(ROOT)
    return str(tmp_path)
