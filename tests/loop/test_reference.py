"""The reference moves when its schedule says, as a round begins or after a step."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.loop.scripted import loop_of
from tests.stages.sessions import round_of, rows, session_of, train_round
from verizero.pipeline.loop.reference import move_reference
from verizero.pipeline.loop.rounds import begin_round
from verizero.pipeline.run.schedule import Item

REWARDS = [0.5, 0.6, 0.6, 0.1, 0.2, 0.2]
SCHEDULES: list[tuple[dict[str, Any], list[int]]] = [
    ({"schedule": "frozen"}, [1, 1, 1, 1, 1, 1]),
    ({"schedule": "every_round"}, [1, 1, 1, 2, 2, 2]),
    ({"schedule": "every_n_steps", "every": 2}, [1, 1, 2, 2, 3, 3]),
    ({"schedule": "ema", "alpha": 0.5}, [1, 2, 3, 4, 5, 6]),
    ({"schedule": "ema", "alpha": 0.5, "every": 2}, [1, 1, 2, 2, 3, 3]),
    ({"schedule": "on_kl", "kl": 0.1}, [1, 1, 2, 2, 3, 3]),
    ({"schedule": "on_plateau", "patience": 1}, [1, 1, 1, 2, 2, 2]),
    ({"schedule": "on_plateau", "patience": 2}, [1, 1, 1, 1, 2, 2]),
]


@pytest.mark.parametrize(("reference", "versions"), SCHEDULES, ids=str)
def test_the_reference_moves_when_its_schedule_says(reference: dict[str, Any], versions: list[int]) -> None:
    """Two rounds of three steps; the KL is 0 in the step after the reference moved, and 1 in the others."""
    loop = loop_of(rl={"reference": reference})
    seen: list[int] = []
    for number in (1, 2):
        loop.state.step = 0
        begin_round(loop.session, Item("rl", "rl", f"round {number}", number, 3))
        for _ in range(3):
            seen.append(loop.state.reference_version)
            just_moved = len(seen) == 1 or seen[-1] > seen[-2]
            metrics = {"kl/k3": 0.0 if just_moved else 1.0, "reward/mean": REWARDS[len(seen) - 1]}
            loop.state.step, loop.state.rl_step = loop.state.step + 1, loop.state.rl_step + 1
            move_reference(loop.backend, loop.setup, loop.state, metrics)  # type: ignore[arg-type]
    assert seen == versions
    assert len(loop.backend.moves) == loop.state.reference_version
    assert set(loop.backend.moves[1:]) <= {reference.get("alpha", 1.0)}


def test_a_step_without_an_update_moves_no_reference_that_waits_for_numbers() -> None:
    for reference in ({"schedule": "on_plateau", "patience": 1}, {"schedule": "on_kl", "kl": 0.1}):
        loop = loop_of(rl={"reference": reference})
        for _ in range(3):
            move_reference(loop.backend, loop.setup, loop.state, {})  # type: ignore[arg-type]
        assert loop.backend.moves == []


@pytest.mark.integration
def test_right_after_it_moved_the_reference_is_the_policy(tmp_path: Path) -> None:
    with session_of(tmp_path, rl={"reference": {"schedule": "every_n_steps", "every": 2}}) as session:
        for number in (1, 2):
            train_round(session, round_of(session, number))
            session.state.step = 0
        metrics = [r["metrics"] for r in rows(session)]
    assert [m["reference/version"] for m in metrics] == [1, 1, 2, 2, 3, 3]
    for before, after in pairwise(metrics):
        moved = after["reference/version"] > before["reference/version"]
        assert (after["kl/k3"] < 1e-9) == moved


def test_no_reference_is_held_where_the_recipe_asks_for_none(tmp_path: Path) -> None:
    algorithm = {"name": "dapo", "kl_coef": 0, "kl_target": None, "kl_horizon": None, "allow": []}
    with session_of(tmp_path, rl={"algorithm": algorithm, "reference": {"schedule": "none"}}) as session:
        train_round(session)
        metrics = [r["metrics"] for r in rows(session)]
        assert session.workers.backend.reference is None  # type: ignore[attr-defined]
    assert not any(m["update/skipped"] for m in metrics)
    assert all("kl/k3" not in m and m["reference/version"] == 0.0 for m in metrics)
