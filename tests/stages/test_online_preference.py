"""Online preferences: groups sampled, ranked by verifier or judge, the best trained against the worst; resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.stages.broken import goes_on_as_if_never_broken
from tests.stages.marks import MARKED
from tests.stages.start import start
from tests.stages.test_preference import NEAR
from tests.stages.tiny import tiny
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.host.disk import read_jsonl

SECTION = {
    "loss": {"name": "dpo"},
    "rounds": 2,
    "steps_per_round": 2,
    "prompts_per_step": 3,
    "group_size": 6,
    "optimizer": {"learning_rate": 1e-3},
}


def recipe(**given: Any) -> RunConfig:
    changes = {"stages": ["online_preference"], "sft": None, "online_preference": {**SECTION, **given}}
    return tiny(changes, [start(), MARKED])


def steps_of(folder: Path) -> list[dict[str, Any]]:
    rows = read_jsonl(folder / "metrics.jsonl")
    return [r["metrics"] for r in rows if r["kind"] == "step" and r["stage"] == "online_preference"]


@pytest.mark.run
@pytest.mark.parametrize(("loss", "schedule"), [("dpo", "every_round"), ("simpo", None)])
def test_best_trains_against_worst_and_a_stopped_run_ends_with_the_same_bytes(
    tmp_path: Path, loss: str, schedule: str | None
) -> None:
    config = recipe(loss={"name": loss}, reference=None if schedule is None else {"schedule": schedule})
    goes_on_as_if_never_broken(config, tmp_path, [("update", 3)])
    steps = steps_of(tmp_path / "whole")
    assert len(steps) == 4
    assert all(m["pairs"] >= 1 for m in steps)
    assert all(
        m["groups/kept"] == m["groups/trained"] + m["groups/carried_out"] - m["groups/carried_in"] for m in steps
    )
    if loss == "dpo":
        assert [m["reference/version"] for m in steps] == [1, 1, 2, 2]
        assert steps[0]["preference/margin"] == pytest.approx(0.0, abs=NEAR), "the reference is the policy"
        assert abs(steps[1]["preference/margin"]) > 1e-5
        assert steps[2]["preference/margin"] == pytest.approx(0.0, abs=NEAR)
