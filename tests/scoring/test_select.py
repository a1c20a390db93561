"""Which groups train."""

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scoring.fakes import rollout
from verizero.pipeline.scoring.select import acceptance_after, classify_group, forecast, form_groups, select
from verizero.pipeline.types import Group, Prompt, ScoredRollout, Verdict

PROMPT = Prompt("p0", "?", "exact", "x")


def group(rewards: Sequence[float | None], prompt: Prompt = PROMPT) -> Group:
    """Graded by their rewards; None is a failed grader."""
    return Group(prompt, tuple(member(r, prompt.id) for r in rewards))


def member(reward: float | None, prompt: str = "p0") -> ScoredRollout:
    if reward is None:
        return ScoredRollout(rollout("", prompt), Verdict("verifier_error"), None)
    return ScoredRollout(rollout("", prompt), Verdict("graded", min(1.0, max(0.0, reward))), reward)


CASES: dict[str, tuple[list[float | None], str]] = {
    "some right": ([1.0, 0.0, 0.0], "kept"),
    "partly right": ([0.5, 0.25, 0.5], "kept"),
    "all right": ([1.0, 1.0], "all_right"),
    "all wrong": ([0.0, 0.0, 0.0], "all_wrong"),
    "equally partial": ([0.5, 0.5], "equal"),
    "equally bad": ([-0.5, -0.5], "equal"),
    "equal but for rounding": ([0.1 + 0.2, 0.3], "equal"),
    "all graders failed": ([None, None], "infrastructure"),
    "one grader answered": ([1.0, None, None], "infrastructure"),
    "two answered and differ": ([1.0, 0.0, None], "kept"),
    "two answered and are right": ([1.0, None, 1.0], "all_right"),
    "a group of one, right": ([1.0], "all_right"),
    "a group of one, wrong": ([0.0], "all_wrong"),
    "a group of one, failed": ([None], "infrastructure"),
}


@pytest.mark.parametrize("case", list(CASES))
def test_each_reason(case: str) -> None:
    rewards, reason = CASES[case]
    for order in itertools.permutations(rewards):
        assert classify_group(group(order)) == reason


def test_a_right_answer_that_the_table_gives_nothing_is_not_all_right() -> None:
    """Truncated ones: their verdict is right, their reward is the table's."""
    wrong = ScoredRollout(rollout("", finish="length"), Verdict("no_answer"), 0.0)
    assert classify_group(Group(PROMPT, (wrong, wrong))) == "all_wrong"
    assert classify_group(Group(PROMPT, (member(1.0), wrong))) == "kept"


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=1, max_size=5), max_size=12))
def test_every_group_is_counted_once_and_those_kept_are_in_order(all_rewards: list[list[float | None]]) -> None:
    groups = [group(r) for r in all_rewards]
    informative, counts = select(groups, "informative")
    everything, same = select(groups, "all")
    assert counts == same
    assert sum(counts.values()) == len(groups)
    assert len(informative) == counts["kept"]
    assert [id(g) for g in informative] == [id(g) for g in groups if len({*g.rewards}) > 1]
    assert [id(g) for g in everything] == [id(g) for g in groups if classify_group(g) != "infrastructure"]
    assert len(everything) == len(groups) - counts["infrastructure"]


def test_groups_are_consecutive_responses_to_one_prompt() -> None:
    prompts = [Prompt(f"p{i}", "?", "exact", "x") for i in range(3)]
    scored = [member(float(i), f"p{i // 2}") for i in range(6)]
    groups = form_groups(prompts, scored, 2)
    assert [g.prompt for g in groups] == prompts
    assert [g.rewards for g in groups] == [(0.0, 1.0), (2.0, 3.0), (4.0, 5.0)]
    assert form_groups([], [], 2) == []


def test_a_group_that_is_not_whole_or_of_another_prompt_is_an_error() -> None:
    for size in (1, 3):
        with pytest.raises(ValueError, match=f"4 responses do not make 2 groups of {size}"):
            form_groups([PROMPT, PROMPT], [member(0.0)] * 4, size)
    others = [Prompt("p0", "?", "exact", "x"), Prompt("p1", "?", "exact", "x")]
    with pytest.raises(ValueError, match="'p0' holds responses to another prompt"):
        form_groups(others, [member(0.0, p) for p in ("p0", "p1", "p0", "p1")], 2)


@given(st.integers(0, 500), st.floats(0.0, 1.0), st.integers(1, 1000))
def test_a_forecast_is_the_fewest_prompts_expected_to_do(missing: int, acceptance: float, most: int) -> None:
    found = forecast(missing, acceptance, most)
    assert 1 <= found <= most
    if acceptance >= 1e-3 and 1 < found < most:
        assert found * acceptance >= missing - 1e-6
        assert (found - 1) * acceptance < missing
    if acceptance == 0 and missing:
        assert found == min(most, math.ceil(missing * 1000))


def test_acceptance_moves_towards_what_was_seen_and_stays_a_share() -> None:
    assert acceptance_after(0.4, 0, 0) == 0.4
    assert acceptance_after(0.5, 1, 2) == pytest.approx(0.5)
    assert acceptance_after(1.0, 0, 10, weight=0.3) == pytest.approx(0.7)
    rate = 1.0
    for _ in range(60):
        rate = acceptance_after(rate, 2, 8)
        assert 0.0 <= rate <= 1.0
    assert rate == pytest.approx(0.25)
