"""Alarms are on the page as text, and rows that a roll-back undid are in the files only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.report.runs import HOSTILE, make_run, read_rows
from verizero.pipeline.report.alarms import MAX_ALARMS, alarms_section
from verizero.pipeline.report.files import read_run
from verizero.pipeline.report.page import build_page
from verizero.pipeline.report.samples import choose_samples
from verizero.pipeline.report.summary import build_summary

SIGN = {"measure": "entropy", "value": 0.003, "limit": 0.02, "said": "entropy fell to 0.003 (guard.min_entropy: 0.02)"}


def collapse(**more: Any) -> dict[str, Any]:
    place = {"stage": "rl", "stage_kind": "rl", "round": 3, "step": 60}
    return {"kind": "alarm", "alarm": "collapse", **place, "signs": [SIGN], "time": {}, **more}


def rolled_back(to_step: int) -> dict[str, Any]:
    return collapse(action="roll_back", to_step=to_step, roll_backs=1, knob={"rl.optimizer.learning_rate": 1.5e-4})


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("alarms") / "demo")


def test_a_run_without_alarms_has_no_such_section(run_dir: Path) -> None:
    assert alarms_section(read_run(run_dir)) == ""


@pytest.mark.integration
def test_alarms_are_said_in_words_and_escaped(run_dir: Path, tmp_path: Path) -> None:
    rows = read_rows(run_dir / "metrics.jsonl")
    graders = {"kind": "alarm", "alarm": "verifier", "stage": "rl", "step": 4, "where": "round 1 step 4"}
    graders |= {"failure_rate": 0.125, "responses": 512, "first": f"First: verifier_error: {HOSTILE}", "time": {}}
    rows += [graders, collapse(action="warn"), collapse(action="stop"), rolled_back(40)]
    write(tmp_path, "metrics.jsonl", rows)
    page = build_page(tmp_path).read_text(encoding="utf-8")
    assert "round 1 step 4: graders failed on 12% of 512 responses. First: verifier_error: &lt;/script&gt;" in page
    assert "<img src=x" not in page
    said = "rl step 60: RL may be collapsing: entropy fell to 0.003 (guard.min_entropy: 0.02). "
    for end in ("The run went on", "The run was stopped", "Rolled back to step 40, with rl.optimizer.learning_rate ="):
        assert said + end in page


def test_of_many_alarms_the_last_are_listed(run_dir: Path, tmp_path: Path) -> None:
    rows = [collapse(action="warn") | {"step": i} for i in range(MAX_ALARMS + 7)]
    write(tmp_path, "metrics.jsonl", read_rows(run_dir / "metrics.jsonl") + rows)
    section = alarms_section(read_run(tmp_path))
    assert section.count("<li>") == MAX_ALARMS
    assert f"The last {MAX_ALARMS} of {MAX_ALARMS + 7}." in section
    assert f"rl step {MAX_ALARMS + 6}:" in section
    assert "rl step 6:" not in section


def test_undone_steps_and_evaluations_count_no_more(run_dir: Path, tmp_path: Path) -> None:
    """A run rolled back from step 60 to 40 has the summary of the run that went right at once."""
    rows = read_rows(run_dir / "metrics.jsonl")
    at = next(i for i, r in enumerate(rows) if r["stage"] == "rl" and r["step"] == 41)
    bad = json.loads(json.dumps(rows[at:]))
    for row in bad:
        if row["kind"] == "step":
            row["metrics"]["reward/sampled"] = -100.0
        else:
            row["domains"]["arithmetic"]["pass@1"]["value"] = 0.0
    write(tmp_path / "demo", "metrics.jsonl", [*rows[:at], *bad, rolled_back(40), *rows[at:]])
    (tmp_path / "demo" / "run.json").write_text((run_dir / "run.json").read_text())
    assert build_summary(tmp_path / "demo") == build_summary(run_dir)
    assert [r.step for r in read_run(tmp_path / "demo").rl_steps] == list(range(1, 61))


def test_answers_of_a_step_done_twice_are_two_groups(run_dir: Path, tmp_path: Path) -> None:
    rows = read_rows(run_dir / "rollouts.jsonl")
    write(tmp_path, "rollouts.jsonl", rows + [r | {"roll_backs": 1} for r in rows if r["step"] == 60])
    twice = [g for g in choose_samples(tmp_path).groups if g["step"] == 60]
    once = [g for g in choose_samples(run_dir).groups if g["step"] == 60]
    assert len(twice) == 2 * len(once)
    assert {len(g["samples"]) for g in twice} == {len(g["samples"]) for g in once}
    assert sorted(g["roll_backs"] for g in twice) == [0] * len(once) + [1] * len(once)
