"""Grading during generation changes no byte; an evaluation counts the graders that failed and raises the alarm."""

import json

import pytest

from tests.launch.runs import lines_without_times
from tests.report.test_page import Reader
from tests.stages.sessions import lines, lose, rows, session_of, train_round, weights
from tests.stages.start import ONLY_RL, start
from tests.stages.tiny import tiny
from verizero.pipeline.loop.phases import unwrapped
from verizero.pipeline.report.page import build_page
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.report.result import result_lines
from verizero.pipeline.report.summary import build_summary
from verizero.pipeline.run.state import Item
from verizero.pipeline.scoring.score import EarlyGrading
from verizero.pipeline.stages.evaluate import evaluate
from verizero.pipeline.types import Verdict
from verizero.pipeline.whole_run import train

pytestmark = pytest.mark.run  # whole runs


def test_weights_and_lines_are_those_of_grading_at_the_end(tmp_path):
    """Also with a further reward, and with greedy responses, whose places come after all others."""
    components = [{"verifier": {"name": "length"}, "weight": 0.5}]
    ends = []
    for overlap in (True, False):
        changes = {
            "rl": {"algorithm": {"name": "remax"}, "select": {"keep": "all"}},
            "scoring": {"components": components, "overlap": overlap},
        }
        with session_of(tmp_path / str(overlap), **changes) as session:
            train_round(session)
            evaluate(session, Item("evaluate", "rl", "end"), unwrapped)
            ends.append(([w.tolist() for w in weights(session)], lines_without_times(session.run.folder)))
    assert ends[0] == ends[1]


def test_responses_are_graded_while_others_are_written(tmp_path, monkeypatch):
    """With the embedded engine, in RL and in evaluation."""
    added = []
    add = EarlyGrading.add

    def counted(self, ended, offset=0):
        added.append(len(ended))
        add(self, ended, offset)

    monkeypatch.setattr(EarlyGrading, "add", counted)
    begun = [start("sft.steps=60"), *ONLY_RL]
    config = tiny({"rl": {"rounds": 1, "steps_per_round": 1}, "scoring": {"overlap": True}}, begun)
    train(config, tmp_path, tmp_path / "run", "auto", Progress())
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    times = [line["time"] for line in written if line["kind"] == "step" and line["stage"] == "rl"]
    assert all(t["graders"] > 0 and t["verify"] > 0 for t in times)
    assert all("evaluate/graders" in line["time"] for line in written if line["kind"] == "evaluation")
    assert len(added) > 10, "they end at several steps"
    assert "graders at work" in Reader(build_page(tmp_path / "run").read_text()).text


def test_an_evaluation_counts_failed_graders_and_raises_the_alarm(tmp_path):
    with session_of(tmp_path, scoring={"retries": 0, "overlap": False}) as session:
        evaluate(session, Item("evaluate", "base", "base"), unwrapped)
        lose(session, 4, Verdict("sandbox_error", reason="lost <b>"))
        train_round(session)
        evaluate(session, Item("evaluate", "rl", "end", round=1), unwrapped)
        said = [x for x in lines(session) if x.startswith("evaluate")]
        before, after = (row for row in rows(session) if row["kind"] == "evaluation")
        session.recorder.store.sync()
    (alarm,) = said
    assert "evaluate end: graders failed on" in alarm
    assert "none was counted as wrong" in alarm
    assert "First: sandbox_error: lost <b>" in alarm
    (domain,) = after["domains"].values()
    total = 6 * (2 + 1)
    assert domain["num_responses"] == total == sum(after["verdicts"].values())
    assert domain["grader_failures"] == after["verdicts"]["sandbox_error"] in (total // 4, total // 4 + 1)
    (domain,) = before["domains"].values()
    assert domain["grader_failures"] == 0
    assert "sandbox_error" not in before["verdicts"]
    summary = build_summary(tmp_path / "run")
    (before, after) = (next(iter(summary[side].values())) for side in ("before", "after"))
    assert (before["grader_failures"], before["num_responses"]) == (0, total)
    assert after["grader_failures"] >= total // 4
    text = f"graders failed on {after['grader_failures']} of {total} answers of arithmetic after RL"
    assert any(text in line for line in result_lines(summary))
