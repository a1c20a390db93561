"""Estimates against enumeration of every subset, and the properties that they must have."""

from collections import Counter
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loop.scripted import group_of
from verizero.pipeline.errors import DataError
from verizero.pipeline.report.estimates import (
    PromptSamples,
    decompose_gain,
    maj_at_k,
    pass_at_k,
    prompt_values,
    summarize_domain,
)
from verizero.pipeline.stages.evaluate import prompt_samples

ANSWERS = st.sampled_from(["1", "2", "3", None])
SAMPLES = st.lists(st.tuples(st.booleans(), ANSWERS), min_size=1, max_size=9)


def slow_pass(correct, k):
    return fmean(any(subset) for subset in combinations(correct, k))


def slow_majority(samples, k):
    worth = {}
    for answer in {a for _, a in samples}:
        judged = [right for right, a in samples if a == answer]
        worth[answer] = fmean(judged)
    scores = []
    for subset in combinations(samples, k):
        votes = Counter(a for _, a in subset if a is not None)
        top = [a for a, n in votes.items() if n == max(votes.values())]
        scores.append(fmean(worth[a] for a in top) if top else 0.0)
    return fmean(scores)


def make(prompt_id, correct, answers="", greedy=None):
    right = tuple(c == "1" for c in correct)
    given_answers = tuple(None if a == "-" else a for a in answers) or tuple("a" if r else "b" for r in right)
    return PromptSamples(prompt_id, right, given_answers, tuple(range(len(right))), (False,) * len(right), greedy)


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_mean_over_every_subset(correct, data):
    k = data.draw(st.integers(1, len(correct)))
    assert pass_at_k(len(correct), sum(correct), k) == pytest.approx(slow_pass(correct, k))


@pytest.mark.run
@settings(max_examples=200)
@given(SAMPLES, st.data())
def test_majority_is_the_mean_over_every_subset(samples, data):
    k = data.draw(st.integers(1, len(samples)))
    correct, answers = zip(*samples, strict=True)
    assert maj_at_k(correct, answers, k) == pytest.approx(slow_majority(samples, k))


def test_pass_at_k_holds_for_more_samples_than_a_float_can_count():
    assert pass_at_k(5000, 0, 2500) == 0
    assert pass_at_k(5000, 1, 2500) == pytest.approx(0.5)
    assert pass_at_k(5000, 5000, 2500) == 1


def test_answers_vote_without_their_spaces():
    assert maj_at_k([True, True, False], ["1 ", " 1", "2"], 3) == 1


@pytest.mark.parametrize("k", [0, -1, 4])
def test_a_k_that_the_samples_cannot_give_is_refused(k):
    with pytest.raises(DataError, match=rf"\[1, 3\].* {k}\b"):
        pass_at_k(3, 1, k)
    with pytest.raises(DataError, match=rf" {k}\b"):
        maj_at_k([True] * 3, ["1"] * 3, k)


UNIT = st.floats(0, 1)


@given(UNIT, UNIT, UNIT, UNIT)
def test_the_parts_of_a_gain_sum_to_it(a, b, c, d):
    (p0, k0), (p1, k1) = sorted((a, b)), sorted((c, d))
    gain = decompose_gain(p0, k0, p1, k1)
    assert gain.sharpening + gain.new == pytest.approx(p1 - p0, abs=1e-12)
    assert p0 + gain.sharpening <= k0 + 1e-12
    assert gain.new * (k1 - k0) >= 0


def test_a_gain_at_equal_reach_is_all_sharpening_and_at_equal_sharpness_all_new():
    assert decompose_gain(0.4, 0.8, 0.6, 0.8).new == 0
    assert decompose_gain(0.4, 0.8, 0.5, 1.0).sharpening == pytest.approx(0)
    assert decompose_gain(0, 0, 0.5, 0.7).new == pytest.approx(0.5)
    assert decompose_gain(0.3, 0.5, 0, 0).total == pytest.approx(-0.3)


@pytest.mark.parametrize("wrong", [(0.9, 0.5, 0.1, 0.2), (0.1, 0.2, -0.1, 0.2), (0.1, 0.2, 0.5, 1.5)])
def test_a_gain_of_impossible_rates_is_refused(wrong):
    with pytest.raises(DataError, match=r"pass@1=.* pass@k="):
        decompose_gain(*wrong)


def test_a_domain_is_the_mean_over_its_prompts():
    samples = [make("a", "1100", greedy=True), make("b", "0000", greedy=False), make("c", "1111", greedy=True)]
    summary = summarize_domain(samples, 2)
    assert summary["pass@1"]["value"] == pytest.approx(0.5)
    assert summary["pass@k"]["value"] == pytest.approx((slow_pass([True, True, False, False], 2) + 0 + 1) / 3)
    assert summary["greedy"]["value"] == pytest.approx(2 / 3)
    assert summary["length"]["value"] == pytest.approx(1.5)
    assert summary["num_prompts"] == 3
    assert summary["by_prompt"] == [["a", 0.5], ["b", 0.0], ["c", 1.0]]
    assert "num_short" not in summary
    for name in ("pass@1", "pass@k", "maj@k", "greedy", "length", "truncated"):
        assert summary[name]["low"] <= summary[name]["value"] <= summary[name]["high"]
    assert summarize_domain(samples, 2) == summary


def test_prompts_that_lost_samples_are_counted_not_guessed():
    samples = [make("a", "11", greedy=True), make("b", "1"), make("c", "")]
    summary = summarize_domain(samples, 2)
    assert summary["num_short"] == 2
    assert summary["pass@1"]["value"] == 1
    assert prompt_values(samples, 2)["pass@k"] == {"a": 1.0}
    assert prompt_values(samples, 2)["greedy"] == {"a": 1.0}
    alone = summarize_domain([make("b", "1")], 2)
    assert "pass@k" not in alone
    assert "greedy" not in alone


def test_no_majority_is_told_where_right_answers_cannot_vote():
    def sampled(right, answers):
        return PromptSamples("p", tuple(r == "1" for r in right), tuple(answers), (1, 1), (False, False))

    assert "maj@k" not in summarize_domain([sampled("10", [None, "x"])], 2)
    assert summarize_domain([sampled("11", [None, "x"])], 2)["maj@k"]["value"] == 1
    # A model that never answers is wrong by majority too.
    assert summarize_domain([sampled("00", [None, None])], 2)["maj@k"]["value"] == 0


def test_bad_samples_are_refused_by_name():
    with pytest.raises(DataError, match="'p'"):
        PromptSamples("p", (True,), (), (1,), (False,))
    with pytest.raises(DataError, match=r"data\.evaluation"):
        summarize_domain([], 2)
    with pytest.raises(DataError, match=r"0.*evaluation\.k"):
        summarize_domain([make("a", "1")], 0)
    with pytest.raises(DataError, match="'a'"):
        summarize_domain([make("a", "1"), make("a", "0")], 1)


def test_the_mean_reward_is_of_all_prompts_also_of_those_whose_rewards_are_shares():
    def rewarded(prompt_id, *rewards):
        scores = tuple(min(1.0, max(0.0, r)) for r in rewards)
        right, none = tuple(r >= 1 for r in rewards), (None,) * len(rewards)
        lengths, cut = (1,) * len(rewards), (False,) * len(rewards)
        tells = scores == rewards
        return PromptSamples(prompt_id, right, none, lengths, cut, None, scores, rewards, tells)

    mixed = summarize_domain([rewarded("a", 0.0, 1.0), rewarded("b", 3.0, -1.0), rewarded("c", 0.0, 0.0)], 1)
    assert mixed["reward"]["value"] == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert not {"pass@1", "score"} & mixed.keys()
    shares = summarize_domain([rewarded("a", 0.0, 1.0), rewarded("c", 0.5, 0.0)], 1)
    assert "reward" not in shares, "it would be the score once more"
    assert shares["score"]["value"] == pytest.approx(0.375)


def test_answers_whose_grader_failed_are_no_samples():
    samples = prompt_samples(group_of(0, [1.0, None, 0.0]), group_of(0, [None]))
    assert (samples.correct, samples.greedy_correct) == ((True, False), None)
    assert prompt_samples(group_of(0, [1.0]), group_of(0, [0.0])).greedy_correct is False
