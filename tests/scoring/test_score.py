"""Responses to rewards: the table, graders that fail, several rewards of one response, order and tallies."""

import random

import pytest

from tests.scoring.fakes import Scripted, prompts_of, rollout, scorer_of
from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.errors import DataError
from verizero.pipeline.scoring.score import CHUNK, Scorer, bind_verifiers
from verizero.pipeline.scoring.select import classify_group, select
from verizero.pipeline.types import Attempt, Group, Prompt, ScoredRollout, Verdict


class Part(Scripted):
    """Reads the text before the bar, or behind it."""

    def __init__(self, place):
        super().__init__()
        self.place = place

    def _one(self, attempt, times):
        return super()._one(Attempt(attempt.response.split("|")[self.place].strip(), attempt.reference), times)


def scored(text, weight=0.5, **table):
    second = Part(1)
    config = ScoringConfig.model_validate({"components": [{"verifier": "length", "weight": weight}], **table})
    scorer = Scorer(config, {"a": Part(0)}, [second])
    (member,), tally = scorer.score(prompts_of("a"), [rollout(text)], with_components=True)
    return member, tally, second


@pytest.mark.parametrize(
    ("text", "weight", "components"),
    [
        ("graded 0.75 | graded 0.5", 0.5, (0.75, 0.5)),
        ("graded 0.75 | graded 0.5", -2.0, (0.75, 0.5)),
        ("graded 1 | no_answer", 0.5, (1.0, -0.25)),
    ],
)
def test_the_reward_is_the_weighted_sum_of_what_the_table_says(text, weight, components):
    member, _, _ = scored(text, weight, no_answer=-0.25)
    assert member.components == components
    assert member.reward == components[0] + weight * components[1]
    assert member.verdict.score == components[0]


@pytest.mark.parametrize("text", ["graded 1 | sandbox_error", "verifier_error | graded 1"])
def test_a_grader_that_fails_leaves_no_reward_and_is_counted_once(text):
    member, tally, _ = scored(text)
    assert member.reward is None
    assert member.components == ()
    assert member.verdict.is_infrastructure
    assert tally.failure_rate == 1.0
    assert tally.total == 1
    if text.endswith("sandbox_error"):
        assert member.verdict.reason.startswith("component length: ")


def test_a_component_that_fails_once_is_tried_again():
    member, tally, second = scored("graded 0 | flaky 1", retries=1)
    assert member.components == (0.0, 1.0)
    assert tally.retried == 1
    assert len(second.asked) == 2


def test_a_group_may_teach_by_a_component_whose_sum_is_equal():
    members = tuple(
        ScoredRollout(rollout("x", sample=i), Verdict("graded", 1.0), 1.0, parts)
        for i, parts in enumerate([(1.0, 0.0), (0.0, 1.0)])
    )
    group = Group(Prompt("p0", "?", "a", "x"), members)
    assert classify_group(group) == "all_right"
    assert classify_group(group, by_components=True) == "kept"
    assert select([group], "informative", by_components=True)[0] == [group]
    assert select([group], "informative")[0] == []


TABLE = ScoringConfig(no_answer=-0.1, timeout=-0.2, truncated=-0.5, retries=0)
STATUSES = ["graded 1.0", "graded 0.25", "graded 0", "no_answer", "timeout", "verifier_error", "sandbox_error"]


@pytest.mark.parametrize(("text", "reward"), zip(STATUSES, [1.0, 0.25, 0.0, -0.1, -0.2, None, None], strict=True))
def test_a_verdict_is_worth_what_the_table_says(text, reward):
    scorer, _ = scorer_of(TABLE)
    (scored,), _ = scorer.score(prompts_of("a"), [rollout(text)])
    assert scored.reward == reward
    assert scored.verdict.status == text.split()[0]


@pytest.mark.parametrize("text", STATUSES)
def test_a_response_cut_at_its_length_has_a_worth_of_its_own(text):
    """Even a right one; but a failed grader says nothing of it."""
    cut = rollout(text, finish="length")
    (with_own,), _ = scorer_of(TABLE)[0].score(prompts_of("a"), [cut])
    assert with_own.reward == (None if "error" in text else -0.5)
    (without,), _ = scorer_of(TABLE.model_copy(update={"truncated": None}))[0].score(prompts_of("a"), [cut])
    (whole,), _ = scorer_of(TABLE)[0].score(prompts_of("a"), [rollout(text)])
    assert without.reward == whole.reward


def test_the_verifier_sees_response_reference_question_and_truncation():
    scorer, fakes = scorer_of(TABLE)
    scorer.score(prompts_of("a", reference="42"), [rollout("graded 1"), rollout("graded 0", finish="length")])
    assert fakes["a"].asked == [
        Attempt("graded 1", "42", "question 0", truncated=False),
        Attempt("graded 0", "42", "question 0", truncated=True),
    ]


@pytest.mark.parametrize(
    ("failures", "retries", "reward", "retried"), [(1, 1, 1.0, 1), (1, 0, None, 0), (2, 1, None, 1), (2, 5, 1.0, 2)]
)
def test_a_grader_that_fails_is_asked_again_and_never_gives_a_zero(failures, retries, reward, retried):
    scorer, fakes = scorer_of(TABLE.model_copy(update={"retries": retries}))
    given = [rollout("graded 0.5"), rollout(f"flaky {failures}"), rollout("no_answer")]
    scored, tally = scorer.score(prompts_of("a"), given)
    assert [s.reward for s in scored] == [0.5, reward, -0.1]
    assert tally.retried == retried
    assert len(fakes["a"].asked) == 3 + retried  # the others were asked once
    assert tally.statuses == {
        **({"graded": 2} if reward is not None else {"graded": 1, "sandbox_error": 1}),
        "no_answer": 1,
    }
    assert tally.failure_rate == pytest.approx(0.0 if reward is not None else 1 / 3)


@pytest.mark.parametrize("workers", [1, 4])
def test_order_is_kept_whatever_the_threads(workers):
    """Three verifiers, the first of them slow, several chunks each, duplicates and retries among them."""
    scorer, fakes = scorer_of(TABLE.model_copy(update={"workers": workers, "retries": 1}), "a", "b", "c", delay_s=0.02)
    prompts = prompts_of("a", "b", "c", reference="slow")
    rng = random.Random(0)
    given = [
        rollout(rng.choice([*STATUSES[:5], "flaky 1"]) if i % 7 else f"graded {i / 1000}", f"p{rng.randrange(3)}", i)
        for i in range(5 * CHUNK)
    ]
    scored, tally = scorer.score(prompts, given)
    scorer.close()
    assert [s.rollout for s in scored] == given
    for s in scored:
        word, _, number = s.rollout.text.partition(" ")
        if word == "graded":
            assert s.reward == float(number)
        elif word == "flaky":
            assert s.verdict.status in ("graded", "sandbox_error")  # equal attempts share a count of failures
        else:
            assert s.verdict.status == word
    assert sum(tally.statuses.values()) == tally.total == len(given)
    for name, fake in fakes.items():
        mine = [r for r in given if prompts[r.prompt_id].verifier == name]
        assert {a.response for a in fake.asked} == {r.text for r in mine}
        assert all(("grade" in t) == (workers > 1) for t in fake.threads)
        assert max(fake.batches) <= (CHUNK if workers > 1 else len(given))


def test_without_threads_a_verifier_sees_its_attempts_at_once():
    """So that it can answer duplicates once."""
    scorer, fakes = scorer_of(TABLE, "a", "b")
    scorer.score(prompts_of("a", "b"), [rollout("graded 1", f"p{i % 2}", i) for i in range(3 * CHUNK)])
    assert [f.batches for f in fakes.values()] == [[3 * CHUNK // 2]] * 2


def test_a_tally_adds_up():
    scorer, _ = scorer_of(TABLE)
    _, tally = scorer.score(prompts_of("a"), [rollout(t) for t in [*STATUSES, "timeout"]])
    assert tally.statuses == {"graded": 3, "no_answer": 1, "timeout": 2, "verifier_error": 1, "sandbox_error": 1}
    assert (tally.total, tally.failure_rate, tally.seconds) == (8, 2 / 8, pytest.approx(8 * 0.25))
    scored, nothing = scorer.score({}, [])
    assert (scored, nothing.total, nothing.failure_rate) == ([], 0, 0.0)


def test_verifiers_are_bound_once_by_key_with_their_parameters(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from verizero.verifiers.base import VerifierParams, verifier\n"
        "class P(VerifierParams):\n    wanted: str = 'a'\n"
        "@verifier\ndef check(attempt, params: P):\n    return attempt.response == params.wanted\n"
    )
    rows = [Prompt(str(i), "?", key, "x") for i, key in enumerate(["exact", "own", "exact", "own"])]
    bound = bind_verifiers(rows, {"own": VerifierChoice(path="mine.py:check", params={"wanted": "b"})}, tmp_path)
    assert set(bound) == {"exact", "own"}
    assert [v.score for v in bound["own"].score([Attempt("a", ""), Attempt("b", "")])] == [0.0, 1.0]
    assert [v.score for v in bound["exact"].score([Attempt("x", "x"), Attempt("y", "x")])] == [1.0, 0.0]


def test_a_row_whose_verifier_cannot_be_bound_is_named(tmp_path):
    rows = [Prompt("first", "?", "exact", "x"), Prompt("seventh", "?", "exat", "x")]
    with pytest.raises(DataError, match=r"row 'seventh': no verifier is called 'exat'; did you mean exact"):
        bind_verifiers(rows, {})
    (tmp_path / "mine.py").write_text("def check(completion):\n    return 1\n")
    choice = VerifierChoice(path="mine.py:check", params={"no_such": 1})
    with pytest.raises(DataError, match=r"row 'first': .*no parameter 'no_such'"):
        bind_verifiers([Prompt("first", "?", "own", "x")], {"own": choice}, tmp_path)


@pytest.mark.parametrize("said", ["graded nan", "graded inf", "graded 1.5", "graded -0.1", "correct 1.0"])
def test_a_verdict_that_is_none_is_the_graders_failure(said):
    """A verifier of the user's own can say anything; NaN as a reward would end the run."""
    scorer, _ = scorer_of(TABLE)
    (scored,), tally = scorer.score(prompts_of("a"), [rollout(said)])
    assert scored.reward is None
    assert scored.verdict.status == "verifier_error"
    assert said.split()[1 if "graded" in said else 0] in scored.verdict.reason
    assert tally.failure_rate == 1.0
