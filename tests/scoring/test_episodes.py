"""Rewards of episodes: the environment's verdict, the ending's own number, and failures that are no zeros."""

from dataclasses import replace

import pytest

from tests.made_episodes import episode_of, turn_of
from tests.scoring.fakes import scorer_of
from verizero.pipeline.config.scoring import ComponentConfig, ScoringConfig
from verizero.pipeline.scoring.score import Scorer
from verizero.pipeline.types import Attempt, Prompt, Verdict

TABLE = ScoringConfig(no_answer=-0.1, truncated=-0.5, retries=2)
OWN = {"p0": Prompt("p0", "what?", "environment", "42", environment="guess")}
GRADED = {"p0": Prompt("p0", "what?", "a", "42", environment="tools")}


def played(ending="done", outcome=None, last="graded 0.75"):
    return episode_of([[turn_of([1], [2, 3]), turn_of([4], [5])]], ending, outcome, ("hm", last))


def test_an_environments_verdict_needs_no_grader():
    scorer, fakes = scorer_of(TABLE)
    for prompts in (OWN, GRADED):
        outcome = Verdict("graded", 0.5, "half")
        (scored,), tally = scorer.score(prompts, [played(outcome=outcome)])
        assert (scored.verdict, scored.reward) == (outcome, 0.5)
        assert tally.statuses == {"graded": 1}
    assert fakes["a"].asked == []


def test_a_verifier_grades_the_last_message_and_sees_them_all():
    scorer, fakes = scorer_of(TABLE)
    rollout = played()
    (scored,), _ = scorer.score(GRADED, [rollout])
    assert scored.reward == 0.75
    assert fakes["a"].asked == [Attempt("graded 0.75", "42", "what?", messages=rollout.episode.messages)]


def test_a_broken_environment_is_no_zero_and_no_grader_is_asked_for_it():
    scorer, fakes = scorer_of(TABLE)
    for prompts in (OWN, GRADED):
        (scored,), tally = scorer.score(prompts, [played("failed", Verdict("environment_error", reason="gone"))])
        assert scored.reward is None
        assert tally.failure_rate == 1.0
        assert tally.retried == 0
    assert fakes["a"].asked == []
    (scored,), _ = scorer.score(OWN, [played("done")])
    assert (scored.verdict.status, scored.reward) == ("environment_error", None)
    (scored,), _ = scorer.score(OWN, [played("done", Verdict("graded", float("nan")))])
    assert (scored.verdict.status, scored.reward) == ("verifier_error", None)


@pytest.mark.parametrize(
    ("ending", "endings", "reward"),
    [
        ("turns", {}, -0.1),
        ("turns", {"turns": 0.3}, 0.3),
        ("turns", {"turns": None}, -0.1),
        ("unread", {"turns": 0.3}, -0.1),
        ("tokens", {}, -0.5),
        ("tokens", {"tokens": 0.0}, 0.0),
    ],
)
def test_an_ending_may_have_a_reward_of_its_own(ending, endings, reward):
    scorer, _ = scorer_of(TABLE.model_copy(update={"endings": endings}))
    (scored,), _ = scorer.score(OWN, [played(ending)])
    assert scored.verdict == Verdict("no_answer", reason=f"ended: {ending}")
    assert scored.reward == reward


def test_a_broken_environment_can_be_given_no_reward():
    with pytest.raises(ValueError, match=r"scoring\.endings\.failed=0: an episode whose environment broke"):
        ScoringConfig(endings={"failed": 0.0})
    assert ScoringConfig(endings={"failed": None}).endings == {"failed": None}


def test_a_cut_turn_that_the_environment_answered_is_not_a_cut_episode():
    """`episodes.cut_turn: answer`: the last turn may be cut while the episode ended well."""
    scorer, _ = scorer_of(TABLE)
    cut = replace(turn_of([4], [5]), finish_reason="length")
    rollout = episode_of([[turn_of([1], [2]), cut]], "done", Verdict("graded", 1.0))
    (scored,), _ = scorer.score(OWN, [rollout])
    assert scored.reward == 1.0


def test_components_grade_episodes_too():
    _, fakes = scorer_of(TABLE)
    config = TABLE.model_copy(
        update={"components": (ComponentConfig.model_validate({"verifier": "exact", "weight": 2.0}),)}
    )
    scorer = Scorer(config, {}, [fakes["a"]])
    rollout = played(outcome=Verdict("graded", 0.5))
    (scored,), _ = scorer.score(OWN, [rollout], with_components=True)
    assert scored.components == (0.5, 0.75)
    assert scored.reward == 2.0
