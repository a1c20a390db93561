"""The batch of a step: filled, short or empty, its surplus carried over, old groups left out, within the budget."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.loop.scripted import Loop, group_of, loop_of, mixed
from verizero.pipeline.loop.batch import affordable_groups, is_out_of_tokens

WANT = 3
"""Prompts of a step of the tiny recipe."""


@pytest.mark.parametrize("carry_over", [True, False])
def test_a_batch_is_filled_and_the_surplus_trains_next_or_is_dropped(carry_over: bool) -> None:
    loop = loop_of(rl={"select": {"carry_over": carry_over}})
    loop.state.stage.acceptance = 0.4  # so that eight are sampled for three
    first = loop.fill()
    assert (len(first.sampled), first.groups) == (8, first.sampled[:WANT])
    assert first.metrics["groups/carried_out"] == (5.0 if carry_over else 0.0)
    assert first.metrics["groups/surplus_dropped"] == (0.0 if carry_over else 5.0)
    second = loop.fill()
    assert second.metrics["groups/carried_in"] == first.metrics["groups/carried_out"]
    if carry_over:
        assert (second.sampled, second.groups) == ([], first.sampled[WANT : 2 * WANT])
        assert loop.state.stage.carried == first.sampled[2 * WANT :]
    else:
        assert second.groups == second.sampled[:WANT]


@pytest.mark.parametrize(("reward", "reason"), [(1.0, "all_right"), (0.0, "all_wrong"), (None, "infrastructure")])
def test_groups_that_teach_nothing_are_counted_and_refills_are_bounded(reward: float | None, reason: str) -> None:
    loop = loop_of(lambda number: [reward] * 6, rl={"select": {"max_refills": 2}})
    batch = loop.fill()
    assert batch.groups == []
    assert batch.counts[reason] == len(batch.sampled) == loop.num_sampled
    assert len(batch.tallies) == 1 + 2
    assert WANT < loop.num_sampled <= 3 * 4 * WANT
    assert loop.state.stage.acceptance == pytest.approx(0.7**3)


def test_refills_ask_for_what_is_missing() -> None:
    loop = loop_of(lambda number: mixed(number) if number % 2 else [0.0] * 6)
    batch = loop.fill()
    assert len(batch.groups) == WANT
    assert len(batch.tallies) > 1
    assert batch.counts["kept"] == len(batch.groups) + batch.metrics["groups/carried_out"]


def test_groups_that_are_too_old_are_left_out_and_counted() -> None:
    loop = loop_of(rollout={"max_staleness": 1})
    loop.state.policy_version = 3
    old, young = group_of(90, mixed(90), version=1), group_of(91, mixed(91), version=2)
    loop.state.stage.carried = [old, young]
    batch = loop.fill()
    assert batch.groups == [young, *batch.sampled]
    assert batch.metrics["groups/stale"] == 1.0
    without = loop_of()
    without.state.policy_version, without.state.stage.carried = 3, [old]
    assert without.fill().groups[0] is old


LONGEST = 30
GROUP = 6 * LONGEST
"""Tokens of a group at most: six responses of the tiny recipe."""
ALONE: Any = SimpleNamespace(episode_setup=None)
NOTHING: Any = SimpleNamespace(in_flight=(), generation=ALONE)
"""A source of rollouts that generates nothing for later steps."""


def wrong(number: int) -> list[float]:
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
