"""What a run's events become in Prefect."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.artifacts import Listener
from pipeline.report.round import round_markdown
from tests.report.runs import make_run


@pytest.mark.integration
def test_the_artifact_of_a_round_begins_with_the_causes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run", rounds=1, steps_per_round=3, sft_steps=2)
    line = "problem: too_hard: All are wrong. Remedy: easier prompts"
    assert round_markdown(folder, [line]).startswith(f"**Diagnosis.** {line}\n\n")
    assert "Diagnosis" not in round_markdown(folder)
    made: list[str] = []
    monkeypatch.setattr("flows.artifacts.emit_event", lambda *_, **__: None)
    monkeypatch.setattr("flows.artifacts.show_table", lambda *_: None)
    monkeypatch.setattr("flows.artifacts.show_markdown", lambda key, text, description: made.append(text))
    Listener("x", folder)("verizero.round.completed", {"stage": "rl", "round": 1, "causes": [line]})
    assert made[0].startswith("**Diagnosis.** ")
