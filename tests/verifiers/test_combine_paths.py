"""Files that parts of a combination name are looked for where the recipe is, not where the command was typed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stages.tiny import TREE
from verizero.pipeline.commands.verifiers.labelled_rows import Defaults, good_rows
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.scoring.score import bind_components, bind_verifiers
from verizero.pipeline.types import Attempt, Prompt
from verizero.verifiers.combine import combine

LOUD = """from verizero.verifiers.base import verifier

@verifier
def loud(attempt):
    return attempt.response.endswith('{}')
"""
PART = {"path": "checks/loud.py:loud"}
NESTED = {"name": "combine", "params": {"parts": [PART]}}
ATTEMPTS = [Attempt("yes!", None), Attempt("yes", None)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with recipe and check; the working folder has another check of the same name."""
    for place, sign in (("mine", "!"), ("elsewhere", "?")):
        (tmp_path / place / "checks").mkdir(parents=True)
        (tmp_path / place / "checks" / "loud.py").write_text(LOUD.format(sign))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "mine"


def scores(bound: Any) -> list[float]:
    return [v.score for v in bound.score(ATTEMPTS)]


@pytest.mark.parametrize("params", [{"parts": [PART]}, {"parts": [NESTED]}, {"parts": [{**PART, "gate": True}, PART]}])
def test_a_part_is_taken_from_the_base_at_any_depth(folder: Path, params: dict[str, Any]) -> None:
    assert scores(combine.bind(params, folder)) == [1, 0]
    assert scores(combine.bind(params)) == [0, 0], "without one, from the working folder"
    (folder / "checks" / "loud.py").unlink()
    with pytest.raises(ConfigError, match=r"mine/checks/loud\.py"):
        combine.bind(params, folder)


def test_a_recipe_is_read_from_any_folder(folder: Path) -> None:
    tree = copy.deepcopy(TREE)
    rows = [{"id": "a", "question": "?", "answer": "x"}]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tree["data"]["train"] = [{"file": "rows.jsonl", "verifier": NESTED}]
    tree["scoring"] = {"components": [{"verifier": NESTED}], "second_opinion": {"verifier": NESTED}}
    (folder / "mine.yaml").write_text(yaml.safe_dump(tree))
    config = load_recipe(folder / "mine.yaml")
    choice = config.data.train[0].verifier
    assert not isinstance(choice, str | None)
    (bound,) = bind_verifiers([Prompt("a", "?", choice.key, "x")], {choice.key: choice}, folder).values()
    assert scores(bound) == [1, 0]
    assert scores(bind_components(config.scoring, folder)[0]) == [1, 0]
    (folder / "checks" / "loud.py").unlink()
    with pytest.raises(ConfigError, match=r"mine\.yaml: .*mine/checks/loud\.py"):
        load_recipe(folder / "mine.yaml")


def test_rows_find_parts_in_the_base_and_then_beside_themselves(folder: Path) -> None:
    row = {"verifier": NESTED, "reference": "x", "response": "yes!"}
    (folder / "rows.jsonl").write_text(json.dumps(row))

    def score_of(base: Path) -> float:
        (read,) = good_rows(folder / "rows.jsonl", Defaults(base=base))
        return read.verifier.score([read.attempt()])[0].score

    assert score_of(folder.parent / "elsewhere") == 0.0
    assert score_of(folder.parent) == 1.0, "there is none in the base"
    (folder / "checks" / "loud.py").unlink()
    with pytest.raises(DataError, match=r"checks/loud\.py"):
        score_of(folder.parent)
