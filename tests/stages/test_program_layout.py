"""Rows in HumanEval's columns from the file to the report: checked, trained on by SFT and RL, graded by their tests."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stages.tiny import TREE
from verizero.pipeline.cli import main
from verizero.pipeline.config.merge import merge
from verizero.pipeline.data.generators.base import generate
from verizero.pipeline.report.files import read_rollouts, read_run

TASKS = {"a_max": 3, "b_min": 1, "b_max": 4, "num_train": 8, "num_evaluation": 2, "num_examples": 2, "num_tests": 2}
CHANGES: dict[str, Any] = {
    "model": {"create": {"characters": string.printable, "config": {"max_position_embeddings": 160}}},
    "rollout": {"max_response_tokens": 80},
    "sft": {"steps": 20},
    "rl": {"rounds": 1, "steps_per_round": 2, "prompts_per_step": 2, "group_size": 2, "select": {"keep": "all"}},
}


def humaneval(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the generator of functions in HumanEval's columns."""
    asserts = [f"    assert candidate(*{t['args']}) == {t['expected']}\n" for t in row["answer"]["tests"]]
    return {
        "task_id": row["id"],
        "prompt": f'def f(x):\n    """ {row["question"]} """\n',
        "canonical_solution": f"    return {row['id'].partition('/')[2]}\n",
        "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n" + "".join(asserts),
        "entry_point": "f",
    }


@pytest.mark.integration
def test_from_rows_to_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = generate("induction", {**TASKS, "num_demonstrations": 0}, 0)
    for name, rows in (("train", split.train), ("evaluation", split.evaluation)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(humaneval(r)) + "\n" for r in rows))
    data = {part: [{"file": f"{part}.jsonl", "mapping": "humaneval"}] for part in ("train", "evaluation")}
    data["overlap"] = {"on_overlap": "report"}  # type: ignore[assignment]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(merge(TREE, {**CHANGES, "data": data, "output": str(tmp_path / "runs")})))

    main(["check", str(path)])
    told = capsys.readouterr().out
    assert "10 rows of unit_tests in the layout humaneval: 10 of 10 canonical answers are right" in told
    assert "8 of 8 demonstrations of unit_tests are right" in told

    main(["train", str(path), "--no-prefect"])
    folder = tmp_path / "runs" / "tiny"
    statuses = {row.status for row in read_rollouts(folder)}
    assert "graded" in statuses
    assert statuses <= {"graded", "no_answer"}
    assert [step.stage for step in read_run(folder).steps][20:] == ["rl", "rl"]

    (folder / "report.html").unlink()
    capsys.readouterr()
    main(["report", str(folder)])
    assert f"report: {folder / 'report.html'}" in capsys.readouterr().out
    assert "graded" in (folder / "report.html").read_text()
