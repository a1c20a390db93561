"""`verizero check`: all parts are shown, and the worst of them is the status."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.stages.tiny import TREE
from verizero.pipeline.cli import main
from verizero.pipeline.config.yaml_reader import merge

TITLES = ("The objective", "Data and graders", "This machine", "Memory and time")


def recipe(folder: Path, **changes: object) -> str:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(merge(TREE, changes)))
    return str(path)


@pytest.mark.run
def test_every_part_of_a_sound_recipe_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", recipe(tmp_path), "--gpus", "1"]) == 0
    said = capsys.readouterr().out
    assert [line.removeprefix("== ").partition(" (")[0] for line in said.splitlines() if line.startswith("==")] == [
        *TITLES
    ]
    for text in ("maximise    J =", "checks were tried", "torch", "one step"):
        assert text in said


@pytest.mark.run
def test_a_problem_of_the_data_is_the_status_and_hides_no_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"train": [{"file": "missing.jsonl", "verifier": "math"}]}
    assert main(["check", recipe(tmp_path, data=data)]) == 3
    said = capsys.readouterr().out
    assert "missing.jsonl" in said
    assert "== This machine" in said


@pytest.mark.run
def test_the_memory_of_this_cpu_is_shown_as_by_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", recipe(tmp_path), "--gpu", "cpu"]) == 0
    planned = capsys.readouterr().out
    assert main(["check", recipe(tmp_path), "--gpu", "cpu"]) == 0
    assert planned in capsys.readouterr().out
