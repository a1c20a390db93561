"""Online preferences: groups sampled, ranked by verifier or judge, the best trained against the worst; resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.run import RunConfig
from tests.stages.broken import goes_on_as_if_never_broken
from tests.stages.tiny import tiny

SECTION = {
    "loss": {"name": "dpo"},
    "rounds": 2,
    "steps_per_round": 2,
    "prompts_per_step": 3,
    "group_size": 6,
    "optimizer": {"learning_rate": 1e-3},
}


def recipe(**given: Any) -> RunConfig:
    return tiny({"stages": ["sft", "online_preference"], "online_preference": {**SECTION, **given}})


def steps_of(folder: Path) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [r["metrics"] for r in lines if r["kind"] == "step" and r["stage"] == "online_preference"]


@pytest.mark.integration
@pytest.mark.parametrize(("loss", "schedule"), [("dpo", "every_round"), ("simpo", None)])
def test_best_trains_against_worst_and_a_stopped_run_ends_with_the_same_bytes(
    tmp_path: Path, loss: str, schedule: str | None
) -> None:
    config = recipe(loss={"name": loss}, reference=None if schedule is None else {"schedule": schedule})
    goes_on_as_if_never_broken(config, tmp_path, [("update", 3)])
    found = steps_of(tmp_path / "whole")
    assert len(found) == 4
    assert all(m["pairs"] >= 1 for m in found)
    assert all(
        m["groups/kept"] == m["groups/trained"] + m["groups/carried_out"] - m["groups/carried_in"] for m in found
    )
    if loss == "dpo":
        assert [m["reference/version"] for m in found] == [1, 1, 2, 2]
        assert found[0]["preference/margin"] == pytest.approx(0.0, abs=1e-6), "the reference is the policy"
        assert abs(found[1]["preference/margin"]) > 1e-5
        assert found[2]["preference/margin"] == pytest.approx(0.0, abs=1e-6)
