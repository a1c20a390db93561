"""Grading during generation changes no byte; an evaluation counts the graders that failed and raises the alarm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_page import Reader
from tests.stages.kill_driver import fingerprint
from tests.stages.sessions import Heard, lines, rows, session_of, train_model, train_round, weights
from tests.stages.start import ONLY_RL, start
from tests.stages.tiny import tiny
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.loop.phases import unwrapped
from verizero.pipeline.report.page import build_page
from verizero.pipeline.report.progress import Silent
from verizero.pipeline.report.result import result_lines, result_markdown
from verizero.pipeline.report.row_types import VARYING
from verizero.pipeline.report.summary import build_summary
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.schedule import Item
from verizero.pipeline.run.session import Session
from verizero.pipeline.scoring.early_grading import EarlyGrading
from verizero.pipeline.stages.evaluate import evaluate
from verizero.pipeline.types import Attempt, Verdict
from verizero.pipeline.whole_run import evaluate_model, train

pytestmark = pytest.mark.integration  # whole runs


class Losing:
    """Fails on every `every`-th response."""

    def __init__(self, inner: Any, every: int) -> None:
        self.inner, self.every, self.count = inner, every, 0

    def score(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        """The inner verdicts, but for those lost."""
        verdicts = self.inner.score(attempts)
        lost = []
        for verdict in verdicts:
            self.count += 1
            lost.append(Verdict("sandbox_error", reason="lost <b>") if self.count % self.every == 0 else verdict)
        return lost


def without_times(session: Session) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in VARYING} for row in rows(session)]


@pytest.mark.parametrize("algorithm", ["grpo", "remax"])
def test_weights_and_lines_are_those_of_grading_at_the_end(tmp_path: Path, algorithm: str) -> None:
    """Also with a further reward, and with greedy responses, whose places come after all others."""
    changes = {
        "rl": {"algorithm": {"name": algorithm}, "select": {"keep": "all"}},
        "scoring": {"components": [{"verifier": {"name": "length"}, "weight": 0.5}]},
    }
    ends = []
    for overlap in (True, False):
        scoring = {**changes["scoring"], "overlap": overlap}
        with session_of(tmp_path / str(overlap), **{**changes, "scoring": scoring}) as session:
            train_round(session)
            evaluate(session, Item("evaluate", "rl", "end"), unwrapped)
            ends.append(([w.tolist() for w in weights(session)], without_times(session)))
    assert ends[0] == ends[1]


def test_responses_are_graded_while_others_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the embedded engine, in RL and in evaluation; off where the recipe says so."""
    added: list[int] = []
    add = EarlyGrading.add

    def counted(self: EarlyGrading, ended: Any, offset: int = 0) -> None:
        added.append(len(ended))
        add(self, ended, offset)

    monkeypatch.setattr(EarlyGrading, "add", counted)
    begun = [start("sft.steps=60"), *ONLY_RL]
    config = tiny({"rl": {"rounds": 1, "steps_per_round": 1}, "scoring": {"overlap": True}}, begun)
    train(config, tmp_path, tmp_path / "run", "auto", Silent())
    written = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    times = [line["time"] for line in written if line["kind"] == "step" and line["stage"] == "rl"]
    assert all(t["graders"] > 0 and t["verify"] > 0 for t in times)
    assert all("evaluate/graders" in line["time"] for line in written if line["kind"] == "evaluation")
    assert len(added) > 10, "they end at several steps"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["seconds"]["graders"] == pytest.approx(sum(t["graders"] for t in times), abs=2e-3)
    assert sum(summary["shares"].values()) == pytest.approx(
        1, abs=5e-2
    )  # of seconds that are rounded, in a step of a tenth of one
    assert "graders" not in summary["shares"]
    assert "graders at work" in Reader(build_page(tmp_path / "run").read_text()).text
    added.clear()
    off = tiny({"rl": {"rounds": 1, "steps_per_round": 1}, "scoring": {"overlap": False}}, begun)
    train_model(off, tmp_path, tmp_path / "off")
    assert added == []
    ends = [fingerprint(tmp_path / name) for name in ("run", "off")]
    assert ends[0] == ends[1]


def test_an_evaluation_counts_failed_graders_and_raises_the_alarm(tmp_path: Path) -> None:
    with session_of(tmp_path, scoring={"retries": 0, "overlap": False}) as session:
        evaluate(session, Item("evaluate", "base", "base"), unwrapped)
        session.workers.graders.scorer.graders = {
            k: Losing(v, 4) for k, v in session.workers.graders.scorer.graders.items()
        }
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
    assert text in result_markdown(summary, tmp_path)
    assert (
        f"Graders failed on {after['grader_failures']} of {total} answers (end)"
        in Reader(build_page(tmp_path / "run").read_text()).text
    )


def test_an_evaluation_in_which_graders_fail_seldom_says_nothing(tmp_path: Path) -> None:
    with session_of(tmp_path, scoring={"retries": 0, "alarm_rate": 0.5, "overlap": False}) as session:
        session.workers.graders.scorer.graders = {
            k: Losing(v, 4) for k, v in session.workers.graders.scorer.graders.items()
        }
        evaluate(session, Item("evaluate", "base", "base"), unwrapped)
        said = lines(session)
    assert not any("graders failed" in line for line in said)


def test_evaluating_a_model_alone_raises_the_alarm_and_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "lost.py").write_text(
        "from verizero.verifiers.base import verifier\n\n@verifier\ndef lost(attempt):\n    1 / 0\n"
    )
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": "a", "question": "11+1=", "answer": "12"}) + "\n")
    source = {"file": "rows.jsonl", "domain": "sums", "verifier": {"path": "lost.py:lost"}}
    heard = Heard()
    with pytest.raises(RunError, match="domain 'sums': graders failed on all 3 responses"):
        evaluate_model(tiny({"data": {"evaluation": [source]}}), tmp_path, heard)
    assert any("graders failed on 100% of 3 responses" in x and "ZeroDivisionError" in x for x in heard.lines)


def test_a_broken_generation_leaves_the_session_closing(tmp_path: Path) -> None:
    """Grading that has begun ends with the session, whatever ended generation."""
    config = tiny({"stages": ["rl"], "sft": None})
    with pytest.raises(OSError, match="engine is gone"):
        _break_off(config, tmp_path)


def _break_off(config: RunConfig, folder: Path) -> None:
    with open_run(config, folder, folder / "run", "auto", Silent()) as session:
        decoder = session.workers.rollouts.engine._decoder  # type: ignore[attr-defined]
        step, left = decoder.step, iter(range(8))

        def breaks(*arguments: Any) -> Any:
            if next(left, None) is None:
                raise OSError("engine is gone")
            return step(*arguments)

        decoder.step = breaks
        train_round(session)
