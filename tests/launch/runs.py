"""Runs by several ranks on this machine, what they leave, and which of their processes still live."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file

from tests.launch.host import folder_of, overrides, words_of
from tests.processes import marked, until
from tests.source import ROOT
from tests.warm import MARK, warm
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.errors import RunError
from verizero.pipeline.launch import launch
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.report.row_types import VARYING
from verizero.pipeline.whole_run import train


def by_one(recipe, name, *more):
    """The run's folder, trained by one process that nobody launched."""
    config = load_recipe(recipe, overrides(recipe, name, *more))
    train(config, ROOT, folder_of(config), "auto", Progress())
    return folder_of(config)


def by_ranks(recipe, name, *more):
    """The run's folder after two ranks here, or as many as asked for. Raises: RunError as `launch` does."""
    changes = overrides(recipe, name, "launch.kind=torchrun", *more)
    config = load_recipe(recipe, changes)
    warm().call(launch, config.launch, words_of(recipe, changes), folder_of(config), "tests.launch.rank")
    return folder_of(config)


def folders(folder):
    return [p.name for p in folder.iterdir() if p.is_dir()]


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(found, wanted):
    """To rounding: by other numbers of ranks."""
    ours, theirs = (load_file(f / "model" / "model.safetensors") for f in (found, wanted))
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-5)
    assert (found / "rollouts.jsonl").read_bytes() == (wanted / "rollouts.jsonl").read_bytes()
    steps = [[r["metrics"] for r in rows(f) if r["kind"] == "step"] for f in (found, wanted)]
    assert len(steps[0]) == len(steps[1]) > 1
    for mine, other in zip(*steps, strict=True):
        # Adapters are published alone, but by FSDP, whose engine gets the whole weights.
        assert mine.pop("publish/bytes", 0) >= other.pop("publish/bytes", 0)
        assert mine == pytest.approx(other, abs=3e-5)  # of two updates in float32, as in `test_stages`


def assert_same_bytes(found, wanted):
    """Model, rollouts and metrics, the seconds left out."""
    for name in ("model/model.safetensors", "rollouts.jsonl"):
        assert (found / name).read_bytes() == (wanted / name).read_bytes(), name
    assert lines_without_times(found) == lines_without_times(wanted)


def lines_without_times(folder):
    return [{k: v for k, v in row.items() if k not in VARYING} for row in rows(folder)]


def die(recipe, owner, name, fuse, said, *changes):
    """Start the run with that fuse: it ends with a message that begins as `said`, and without a process left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSE", fuse)
        with pytest.raises(RunError) as caught:
            by_ranks(recipe, name, *changes)
    assert re.match(said, str(caught.value)), fuse
    wait_for_end(owner)
    return str(caught.value)


def wait_for_end(owner):
    """Wait until no process lives whose variable MARK names that folder."""
    until(lambda: not marked(f"{MARK}={owner}"), "the end of all processes")
