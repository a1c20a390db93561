"""`verizero check`: all parts are shown, and the worst of them is the status."""

import pytest
import yaml

from tests.stages.tiny import TREE
from verizero.pipeline.cli import main
from verizero.pipeline.config.yaml_reader import merge


def recipe(folder, **changes):
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(merge(TREE, {"output": str(folder / "runs"), **changes})))
    return str(path)


@pytest.mark.run
def test_every_part_of_a_sound_recipe_is_shown_and_the_memory_as_by_plan(tmp_path, capsys):
    assert main(["plan", recipe(tmp_path), "--gpu", "cpu"]) == 0
    planned = capsys.readouterr().out
    assert main(["check", recipe(tmp_path), "--gpu", "cpu"]) == 0
    said = capsys.readouterr().out
    titles = [line.removeprefix("== ").partition(" (")[0] for line in said.splitlines() if line.startswith("==")]
    assert titles == ["The objective", "Data and graders", "This machine", "Memory and time"]
    for text in ("maximise    J =", "checks were tried", "torch", planned):
        assert text in said


@pytest.mark.run
def test_a_problem_of_the_data_is_the_status_and_hides_no_part(tmp_path, capsys):
    data = {"train": [{"file": "missing.jsonl", "verifier": "math"}]}
    assert main(["check", recipe(tmp_path, data=data)]) == 3
    said = capsys.readouterr().out
    assert "missing.jsonl" in said
    assert "== This machine" in said
