"""Tasks of inspect: run against a tiny model's address end to end, and the scores that its logs may have."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.commands.suites.answering import answering
from tests.commands.suites.test_suites import tiny_model
from tests.far import FarProgram
from tests.processes import until
from tests.warm import ROOT, TRAINING
from verizero.pipeline.commands.eval import Tasks, compared, evaluate_suites
from verizero.pipeline.commands.suites import inspect_tasks
from verizero.pipeline.commands.suites.inspect_tasks import groups_of, program_of_inspect, verdict_of
from verizero.pipeline.commands.suites.models import measured_of
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.report.progress import Silent

TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import generate

@scorer(metrics=[accuracy()])
def says_something():
    async def score(state, target):
        if target.text == "breaks":
            raise ValueError("no score")
        return Score(value="C" if (state.output.completion == "") == (target.text == "") else "I", answer="said")
    return score

@task
def words():
    rows = [Sample(id=f"w{i}", input=f"Word {i}?", target=t) for i, t in enumerate(["x", "", "x"])]
    return Task(dataset=MemoryDataset(rows), solver=generate(), scorer=says_something())
"""


@pytest.mark.slow
@pytest.mark.integration
def test_a_task_is_run_against_the_model_and_shown_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        program_of_inspect()
    except ConfigError:
        pytest.skip("inspect is not installed")
    (tmp_path / "words.py").write_text(TASK)
    task = f"{tmp_path / 'words.py'}@words"
    models = measured_of([str(tiny_model(tmp_path / "model"))])
    done = evaluate_suites(models, [], ["train.device=cpu"], Silent(), Tasks((task,), None, 6))
    row = done[0].row.domains[task]
    # A model of random weights says something; the second row's target asks for nothing.
    assert row["by_prompt"] == [[f"{task}/w0", 1.0], [f"{task}/w1", 0.0], [f"{task}/w2", 1.0]]
    assert {m.rollout.num_sampled <= 6 for g in done[0].groups for m in g.members} == {True}
    compared(done, [])
    page = (tmp_path / "model" / "suites" / "report.html").read_text()
    assert "Word 1?" in page
    assert "says_something" in page

    def refuse(*_: Any) -> Any:
        raise AssertionError("run again")

    monkeypatch.setattr(inspect_tasks, "at_address", refuse)
    again = evaluate_suites(models, [], ["train.device=cpu"], Silent(), Tasks((task,), None, 6))
    assert again[0].row.domains == done[0].row.domains


@pytest.mark.integration
def test_what_inspect_said_last_is_told_if_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "inspect"
    program.write_text("#!/bin/sh\necho no task $2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(inspect_tasks, "program_of_inspect", lambda: str(program))
    models = measured_of([str(tiny_model(tmp_path / "model"))])
    with pytest.raises(RunError, match=r"inspect ended with status 3: [\s\S]*no task words\.py@absent"):
        evaluate_suites(models, [], ["train.device=cpu"], Silent(), Tasks(("words.py@absent",)))


@pytest.mark.slow
@pytest.mark.integration
def test_a_killed_task_goes_on_without_asking_again_what_inspect_has_logged(tmp_path: Path) -> None:
    try:
        program_of_inspect()
    except ConfigError:
        pytest.skip("inspect is not installed")
    (tmp_path / "words.py").write_text(TASK.replace('["x", "", "x"]', '["x"] * 12'))
    with answering(lambda message: message, most=7) as model:
        words = ["verizero.pipeline.cli", "eval", f"{model.url}#made", "--inspect", f"{tmp_path / 'words.py'}@words"]
        words += ["--out", str(tmp_path / "out")]
        environment = {**os.environ, "INSPECT_EVAL_MAX_CONNECTIONS": "1"}
        program = FarProgram(TRAINING, words, tmp_path / "log", environment, ROOT)
        until(model.stalled.is_set, "the eighth question")
        program.kill()
        program.wait(60)
        with model.lock:
            model.most = None
        assert FarProgram(TRAINING, words, tmp_path / "log", environment, ROOT).wait(240) == 0
        counts = Counter(message for message, _ in model.answered)
        # The seventh answer may have come too late for inspect's log.
        assert sorted(counts.values())[:11] == [1] * 11
        assert len(counts) == 12
    assert "12 rows, 12 answers" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("sample", "status", "score"),
    [
        ({"scores": {"match": {"value": "C", "answer": "4"}}}, "graded", 1.0),
        ({"scores": {"match": {"value": "I"}}}, "graded", 0.0),
        ({"scores": {"model_graded": {"value": "P"}}}, "graded", 0.5),
        ({"scores": {"match": {"value": "N"}}}, "no_answer", 0.0),
        ({"scores": {"f1": {"value": 0.25}, "exact": {"value": 1}}}, "graded", 0.25),
        ({"scores": {"if": {"value": {"prompt_level_strict": True, "inst_level_strict": 3}}}}, "graded", 1.0),
        ({"scores": {"odd": {"value": "perhaps"}}}, "verifier_error", 0.0),
        ({"scores": {"odd": {"value": None}}}, "verifier_error", 0.0),
        ({"scores": {"of_ten": {"value": 7}}}, "verifier_error", 0.0),
        ({"scores": {"odd": {"value": float("nan")}}}, "verifier_error", 0.0),
        ({"scores": {}}, "verifier_error", 0.0),
        ({"scores": None, "error": {"message": "the container is gone"}}, "environment_error", 0.0),
        ({"scores": {"match": {"value": "C"}}, "error": {"message": "late"}}, "environment_error", 0.0),
    ],
)
def test_a_score_is_a_verdict_and_what_broke_is_no_wrong_answer(
    sample: dict[str, Any], status: str, score: float
) -> None:
    verdict = verdict_of(sample)
    assert (verdict.status, verdict.score) == (status, score)


def test_epochs_of_a_row_are_its_answers_in_order() -> None:
    def sample(row: str, epoch: int, value: str, **more: Any) -> dict[str, Any]:
        output = {"choices": [{"message": {"content": [{"type": "text", "text": value}]}, "stop_reason": "max_tokens"}],
                  "usage": {"output_tokens": 7}}  # fmt: skip
        talk = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1="}]
        return {"id": row, "epoch": epoch, "input": talk, "target": "2", "output": output,
                "scores": {"match": {"value": value}}, **more}  # fmt: skip

    log = {"samples": [sample("b", 2, "C"), sample("a", 1, "I"), sample("b", 1, "I")]}
    first, second = groups_of(json.loads(json.dumps(log)), "task")
    assert [m.verdict.score for m in first.members] == [0.0, 1.0]
    assert (first.prompt.id, first.prompt.question, first.prompt.domain) == ("task/b", "be brief\n\n1+1=", "task")
    assert [m.rollout.text for m in first.members] == ["I", "C"]
    assert second.members[0].rollout.was_cut
    assert second.members[0].rollout.num_sampled == 7
