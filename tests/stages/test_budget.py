"""A budget of generated tokens holds, whatever the lengths of responses and however often a batch is refilled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.loop.scheduling import affordable_groups, is_out_of_tokens
from pipeline.rollout.scripted_engine import ScriptedEngine
from tests.stages.sessions import rows, session_of, train_round

LONGEST = 30
GROUP = 6 * LONGEST
"""Tokens of a group at most: six responses of the tiny recipe."""


def always(length: int) -> Callable[[tuple[int, ...], int], list[int]]:
    return lambda prompt_ids, seed: [3 + seed % 2] * length


@pytest.mark.parametrize("budget", [3 * GROUP, 4 * GROUP, 1000, 1619])
@pytest.mark.parametrize("length", [1, 11, LONGEST])
@pytest.mark.parametrize("keep", ["all", "informative"])
def test_a_budget_is_never_passed_and_used_while_a_step_surely_fits(
    budget: int, length: int, keep: str, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"max_tokens": budget, "select": {"keep": keep}, "steps_per_round": 12}
    with session_of(tmp_path, rl=changes) as session:
        session.workers.rollouts.engine = ScriptedEngine(always(length), session.run.tokenizer.eos_token_id)
        train_round(session)
        state, steps = session.state, [r["metrics"] for r in rows(session) if r["kind"] == "step"]
        is_out = is_out_of_tokens(session.workers.rollouts, session.setup, state)
        assert is_out == (state.stage.num_tokens + 3 * GROUP > budget)
    used = [m["tokens/generated"] for m in steps]
    assert used[-1] <= budget
    assert all(before + 3 * GROUP <= budget for before in [0.0, *used[:-1]])
    assert len(steps) == 12 or used[-1] + 3 * GROUP > budget


def test_refills_stop_where_the_budget_does(tmp_path: Path) -> None:
    """All answers are wrong: every step refills as often as it may."""
    changes: dict[str, Any] = {"max_tokens": 5 * GROUP, "select": {"keep": "informative", "max_refills": 9}}
    with session_of(tmp_path, rl=changes) as session:
        session.workers.rollouts.engine = ScriptedEngine(always(LONGEST), session.run.tokenizer.eos_token_id)
        train_round(session)
        assert session.state.stage.num_tokens == 5 * GROUP
        assert affordable_groups(session.workers.rollouts, session.setup, session.state) == 0
        (step,) = rows(session)
    assert step["metrics"]["groups/sampled"] == 5.0


def test_a_greedy_baseline_counts(tmp_path: Path) -> None:
    changes = {"max_tokens": 3 * 7 * LONGEST, "algorithm": {"name": "remax"}}
    with session_of(tmp_path, rl={**changes, "select": {"keep": "all"}}) as session:
        assert affordable_groups(session.workers.rollouts, session.setup, session.state) == 3
