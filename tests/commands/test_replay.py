"""`verizero replay`: the recipe's own files are found from any folder, and a message says where they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.stages.sessions import run_all
from tests.stages.tiny import tiny
from verizero.pipeline.cli import main
from verizero.pipeline.report.progress import Silent
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.origin import recipe_folder

GAME = """
from pydantic import Field
from verizero.pipeline.environments.base import EnvironmentParams, Reply, Start
from verizero.pipeline.types import Verdict

class Params(EnvironmentParams):
    last: int = Field(2, ge=1)

class Echo:
    def __init__(self, last):
        self.left = last
    def start(self):
        return Start()
    def step(self, message):
        self.left -= 1
        return Reply(done=True, outcome=Verdict("graded", 1.0)) if self.left == 0 else Reply((NEXT,))
    def close(self):
        pass

from verizero.pipeline.types import Message
NEXT = Message("user", "next")

def echo(params: Params, prompt, task_seed, sample_seed):
    return Echo(params.last)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe's files in `recipes`, and the run in `run`."""
    folder = tmp_path_factory.mktemp("replay")
    (folder / "recipes").mkdir()
    (folder / "recipes" / "games.py").write_text(GAME)
    rows = [{"id": f"g/{n}", "question": f"{n}?", "answer": str(n), "verifier": "environment"} for n in range(4)]
    (folder / "recipes" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"file": "rows.jsonl", "environment": {"path": "games.py:echo"}}
    steps = {"rounds": 1, "steps_per_round": 1, "prompts_per_step": 4, "group_size": 2, "select": {"keep": "all"}}
    tree: dict[str, Any] = {
        "data": {"train": [source], "evaluation": []},
        "stages": ["rl"],
        "sft": None,
        "rl": steps,
        "evaluation": {"before_training": False},
        "rollout": {"max_response_tokens": 4},
        "episodes": {"cut_turn": "answer"},
    }
    with open_run(tiny(tree), folder / "recipes", folder / "run", "auto", Silent()) as session:
        run_all(session)
    return folder


@pytest.fixture
def moved(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that says so, with another working folder."""
    shutil.copytree(trained, tmp_path / "all")
    (tmp_path / "all" / "run" / "origin.json").write_text(json.dumps({"recipe_folder": str(tmp_path / "all/recipes")}))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "all"


def replayed(run: Path, *more: str) -> int:
    """The status of the command for the first prompt of the record."""
    first = json.loads((run / "rollouts.jsonl").read_text().splitlines()[0])
    return main(["replay", str(run), first["prompt_id"], *more])


@pytest.mark.integration
def test_a_replay_finds_the_recipes_files_from_any_folder(
    moved: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recipe_folder(trained / "run") == (trained / "recipes").resolve()
    assert replayed(moved / "run") == 0
    assert "equal to the record: 4 messages" in capsys.readouterr().out


@pytest.mark.integration
def test_a_folder_that_is_gone_is_named_and_another_one_can_be_given(
    moved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (moved / "recipes").rename(moved / "elsewhere")
    assert replayed(moved / "run") == 1
    error = capsys.readouterr().err
    assert f"came from {moved / 'recipes'}, which is not there any more" in error
    assert "--recipes" in error
    assert replayed(moved / "run", "--recipes", str(moved / "elsewhere")) == 0
    (moved / "elsewhere" / "rows.jsonl").write_text(
        json.dumps({"id": "x", "question": "?", "answer": "1", "verifier": "environment"}) + "\n"
    )
    assert replayed(moved / "run", "--recipes", str(moved / "elsewhere")) == 1
    assert "has no episode of prompt 'g/" in capsys.readouterr().err


@pytest.mark.integration
def test_a_run_that_wrote_nothing_down_is_replayed_from_the_working_folder(
    moved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (moved / "run" / "origin.json").unlink()
    monkeypatch.chdir(moved / "recipes")
    assert replayed(moved / "run") == 0
    (moved / "run" / "origin.json").write_text("{}")
    assert replayed(moved / "run") == 1
    assert "origin.json cannot be read" in capsys.readouterr().err
