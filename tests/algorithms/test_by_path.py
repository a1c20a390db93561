"""An algorithm of a recipe by the path of its file, which lies next to the recipe."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stages.sessions import train_model
from tests.stages.start import ONLY_RL, start
from tests.stages.tiny import TREE
from tests.test_documents import CONTRIBUTING, block
from verizero.pipeline.config.load import dump, load_recipe, parse
from verizero.pipeline.config.rl import parts_of
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.run.choose_checkpoint import recipe_fields

SOURCE = block(CONTRIBUTING, "python", "ratio")


def recipe(folder: Path, algorithm: dict[str, Any], **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(SOURCE)
    tree = copy.deepcopy(TREE) | more
    tree["rl"]["algorithm"] = algorithm
    (folder / "my.yaml").write_text(yaml.safe_dump(tree))
    return folder / "my.yaml"


def rl_fields(config: RunConfig) -> dict[str, Any]:
    return recipe_fields(config.of_stage("rl"))


def test_the_path_starts_from_the_recipes_folder_and_a_dumped_recipe_still_finds_it(tmp_path: Path) -> None:
    config = load_recipe(recipe(tmp_path / "a", {"path": "mine.py", "clip_high": 0.04}))
    assert parse(yaml.safe_load(dump(config)), base=tmp_path) == config


def test_a_stage_is_stale_if_the_code_changed_and_not_if_it_moved(tmp_path: Path) -> None:
    first, second = (load_recipe(recipe(tmp_path / name, {"path": "mine.py"})) for name in ("a", "b"))
    before = rl_fields(first)
    assert before == rl_fields(second)
    (tmp_path / "b" / "mine.py").write_text(SOURCE.replace("0.03", "0.04"))
    assert {k for k, v in rl_fields(second).items() if v != before[k]} == {"rl.algorithm.path"}


def test_a_stage_may_have_one_of_its_own(tmp_path: Path) -> None:
    mine: dict[str, Any] = {"name": "later", "kind": "rl", "with": {"algorithm": {"path": "mine.py", "name": None}}}
    config = load_recipe(recipe(tmp_path, {"name": "grpo"}, stages=["sft", "rl", mine]))
    assert [str(parts_of(rl).ratio) for s in ("rl", "later") if (rl := config.of_stage(s).rl)] == [
        "token",
        "root_length",
    ]
    del mine["with"]["algorithm"]["name"]
    with pytest.raises(ConfigError, match="a name or the path"):
        load_recipe(recipe(tmp_path, {"name": "grpo"}, stages=["sft", "rl", mine]))


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        ({"path": "yours.py"}, r"yours\.py': there is no such file"),
        ({"path": "mine.py", "clip_hi": 1}, "no parameter 'clip_hi'; did you mean clip_high"),
        ({"path": 3}, "a name or the path of a file"),
        ({}, "a name or the path of a file"),
    ],
)
def test_what_is_wrong_is_named(algorithm: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        load_recipe(recipe(tmp_path, algorithm))


@pytest.mark.run
def test_it_trains(tmp_path: Path) -> None:
    overrides = [start(), *ONLY_RL, "rl.rounds=1", "rl.steps_per_round=1", "rl.select.keep=all"]
    path = recipe(tmp_path, {"path": "mine.py"})
    train_model(load_recipe(path, overrides), tmp_path, tmp_path / "run")
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
