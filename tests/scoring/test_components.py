"""Several rewards of one response: their sum, what a failing grader of one does, which groups teach by one alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scoring.fakes import Scripted, prompts_of, rollout
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.scoring.score import Scorer
from verizero.pipeline.scoring.select import classify_group, select
from verizero.pipeline.types import Attempt, Group, Prompt, ScoredRollout, Verdict


class Second(Scripted):
    """Reads the text behind the bar."""

    def _one(self, attempt: Attempt, times: int) -> Verdict:
        behind = attempt.response.partition("|")[2].strip()
        return super()._one(Attempt(behind, attempt.reference), times)


class First(Scripted):
    """Reads the text before the bar."""

    def _one(self, attempt: Attempt, times: int) -> Verdict:
        return super()._one(Attempt(attempt.response.partition("|")[0].strip(), attempt.reference), times)


def scored(text: str, weight: float = 0.5, **table: Any) -> tuple[ScoredRollout, Any, Second]:
    second = Second()
    config = ScoringConfig.model_validate({"components": [{"verifier": "length", "weight": weight}], **table})
    scorer = Scorer(config, {"a": First()}, [second])
    (member,), tally = scorer.score(prompts_of("a"), [rollout(text)], with_components=True)
    return member, tally, second


@pytest.mark.parametrize("weight", [0.5, -2.0])
def test_the_reward_is_the_weighted_sum(weight: float) -> None:
    member, _, _ = scored("graded 0.75 | graded 0.5", weight)
    assert member.components == (0.75, 0.5)
    assert member.reward == 0.75 + weight * 0.5
    assert member.verdict.score == 0.75


def test_the_table_holds_for_components() -> None:
    member, _, _ = scored("graded 1 | no_answer", no_answer=-0.25)
    assert member.components == (1.0, -0.25)


@pytest.mark.parametrize("text", ["graded 1 | sandbox_error", "verifier_error | graded 1"])
def test_a_grader_that_fails_leaves_no_reward_and_is_counted_once(text: str) -> None:
    member, tally, _ = scored(text)
    assert member.reward is None
    assert member.components == ()
    assert member.verdict.is_infrastructure
    assert tally.failure_rate == 1.0
    assert tally.total == 1
    if text.endswith("sandbox_error"):
        assert member.verdict.reason.startswith("component length: ")


def test_a_component_that_fails_once_is_tried_again() -> None:
    member, tally, second = scored("graded 0 | flaky 1", retries=1)
    assert member.components == (0.0, 1.0)
    assert tally.retried == 1
    assert len(second.asked) == 2


def test_a_group_may_teach_by_a_component_whose_sum_is_equal() -> None:
    members = tuple(
        ScoredRollout(rollout("x", sample=i), Verdict("graded", 1.0), 1.0, parts)
        for i, parts in enumerate([(1.0, 0.0), (0.0, 1.0)])
    )
    group = Group(Prompt("p0", "?", "a", "x"), members)
    assert classify_group(group) == "all_right"
    assert classify_group(group, by_components=True) == "kept"
    assert select([group], "informative", by_components=True)[0] == [group]
    assert select([group], "informative")[0] == []
