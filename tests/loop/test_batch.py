"""The batch of a step: filled, short or empty, its surplus carried over, and groups that are too old left out."""

from __future__ import annotations

import pytest

from tests.loop.scripted import group_of, loop_of, mixed

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
