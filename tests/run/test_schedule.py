"""The schedule of a run: its items in order, and those that are left after some of them."""

from __future__ import annotations

from tests.stages.tiny import FOUR_STAGES, tiny
from verizero.pipeline.run.state import Item, RunState, schedule


def test_the_items_of_a_list_of_stages() -> None:
    labels = [(i.kind, i.stage, i.label) for i in schedule(tiny(FOUR_STAGES))]
    assert labels == [
        ("evaluate", "base", "before training"),
        ("sft", "sft", "sft"),
        ("evaluate", "sft", "after sft"),
        ("rl", "rl", "round 1"),
        ("evaluate", "rl", "after round 1"),
        ("rl", "rl", "round 2"),
        ("evaluate", "rl", "after round 2"),
        ("sft", "sft_again", "sft_again"),
        ("evaluate", "sft_again", "after sft_again"),
        ("rl", "rl_again", "rl_again round 1"),
        ("evaluate", "rl_again", "after rl_again round 1"),
    ]


def test_positions_count_what_was_trained_and_not_evaluations() -> None:
    with_evaluations, without = schedule(tiny(FOUR_STAGES)), schedule(tiny({**FOUR_STAGES, "data": {"evaluation": []}}))
    done, is_evaluated = 0, False
    for items in (with_evaluations, without):
        done, is_evaluated = 0, False
        for index, item in enumerate(items):
            assert left_of(items, done, is_evaluated) == items[index:]
            done, is_evaluated = (done, True) if item.kind == "evaluate" else (done + 1, False)
        assert left_of(items, done, is_evaluated) == []
    for num_done in range(5):  # wherever a run is, the next item to train is the same
        ways = [(with_evaluations, True), (without, False), (without, True)]
        assert len({_next_trained(items, num_done, evaluated) for items, evaluated in ways}) == 1


def left_of(items: list[Item], num_done: int, is_evaluated: bool) -> list[Item]:
    return RunState(num_done=num_done, is_evaluated=is_evaluated).items_left(items)


def _next_trained(items: list[Item], num_done: int, is_evaluated: bool) -> str:
    left = left_of(items, num_done, is_evaluated)
    return next((i.label for i in left if i.kind != "evaluate"), "")
