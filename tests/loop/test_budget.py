"""A budget of generated tokens holds, whatever the lengths of responses and however often a batch is refilled."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.loop.scripted import Loop, loop_of
from tests.stages.sessions import rows, session_of, train_round
from verizero.pipeline.loop.generation_ahead import affordable_groups, is_out_of_tokens

LONGEST = 30
GROUP = 6 * LONGEST
"""Tokens of a group at most: six responses of the tiny recipe."""
ALONE: Any = SimpleNamespace(episode_setup=None)
NOTHING: Any = SimpleNamespace(in_flight=(), generation=ALONE)
"""A source of rollouts that generates nothing for later steps."""


def wrong(number: int) -> list[float]:
    """The rewards of a group that teaches nothing."""
    return [0.0] * 6


def is_out(loop: Loop) -> bool:
    return is_out_of_tokens(NOTHING, loop.setup, loop.state)


@pytest.mark.parametrize("budget", [3 * GROUP, 4 * GROUP, 1000, 1619])
@pytest.mark.parametrize("length", [1, 11, LONGEST])
@pytest.mark.parametrize("keep", ["all", "informative"])
def test_a_budget_is_never_passed_and_used_while_a_step_surely_fits(budget: int, length: int, keep: str) -> None:
    loop = loop_of(wrong, length, rl={"max_tokens": budget, "select": {"keep": keep}})
    for _ in range(60):
        used = loop.state.stage.num_tokens
        assert is_out(loop) == (used + 3 * GROUP > budget)
        if is_out(loop):
            break
        loop.fill()
        assert used < loop.state.stage.num_tokens <= budget


def test_refills_stop_where_the_budget_does() -> None:
    """All answers are wrong: a step refills as often as it may."""
    loop = loop_of(wrong, LONGEST, rl={"max_tokens": 5 * GROUP, "select": {"keep": "informative", "max_refills": 9}})
    assert len(loop.fill().sampled) == 5
    assert loop.state.stage.num_tokens == 5 * GROUP
    assert affordable_groups(NOTHING, loop.setup, loop.state) == 0


def test_a_greedy_baseline_and_batches_in_flight_count() -> None:
    loop = loop_of(rl={"max_tokens": 3 * 7 * LONGEST, "algorithm": {"name": "remax"}})
    assert affordable_groups(NOTHING, loop.setup, loop.state) == 3
    ahead: Any = SimpleNamespace(in_flight=[SimpleNamespace(prompts=[None] * 2)], generation=ALONE)
    assert affordable_groups(ahead, loop.setup, loop.state) == 1


def test_a_round_ends_with_the_budget(tmp_path: Path) -> None:
    with session_of(tmp_path, "none", rl={"max_tokens": 4 * GROUP, "steps_per_round": 12}) as session:
        train_round(session)
        used = [r["metrics"]["tokens/generated"] for r in rows(session) if r["kind"] == "step"]
        assert used[-1] == session.state.stage.num_tokens
        assert is_out_of_tokens(session.workers.rollouts, session.setup, session.state)
    assert len(used) < 12
    assert all(before + 3 * GROUP <= 4 * GROUP for before in [0.0, *used[:-1]])
