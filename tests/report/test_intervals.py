"""Intervals against published values, against limits that they must meet, and how often they hold the truth."""

import math
from dataclasses import asdict
from statistics import fmean

import numpy as np
import pytest

from benchmarks.coverage import cases, coverage
from verizero.pipeline.errors import DataError
from verizero.pipeline.report.intervals import (
    mean_interval,
    over_seeds,
    paired_difference,
    paired_over_seeds,
    rate_interval,
    t_quantile,
)

T_975 = {1: 12.706205, 2: 4.302653, 3: 3.182446, 4: 2.776445, 5: 2.570582, 9: 2.262157, 29: 2.045230, 99: 1.984217}
"""Student's t, 97.5th percentile, by degrees of freedom, from tables."""


@pytest.mark.parametrize(("df", "value"), [*T_975.items(), (100, 1.983972), (101, 1.983731), (1000, 1.962339)])
def test_quantiles_of_student_s_t_are_those_of_the_tables(df, value):
    assert t_quantile(df) == pytest.approx(value, abs=5e-6)


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(30, 30, 0.886486, 1.0), (0, 10, 0.0, 0.277533), (5, 10, 0.236593, 0.763407), (1, 30, 0.005912, 0.166704)],
)
def test_rates_of_right_and_wrong_prompts_are_wilson_s(right, n, low, high):
    estimate = rate_interval([1.0] * right + [0.0] * (n - right))
    assert (estimate.low, estimate.value, estimate.high) == pytest.approx((low, right / n, high), abs=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.125, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 2, 10, 320])
def test_equal_values_have_an_interval_with_a_width(value, n):
    rate = rate_interval([value] * n)
    assert 0 <= rate.low <= value <= rate.high <= 1
    assert rate.high - rate.low > 1 / (n + 4)
    same = {str(i): value for i in range(n)}
    none = paired_difference(same, same)
    assert -1 <= none.low < 0 == none.value < none.high <= 1
    assert none.high == pytest.approx(-none.low)
    # As the rule of three: about 3 / n.
    assert n < 10 or 2 / n < none.high < 4.5 / n
    length = mean_interval([value * 80] * n, (0.0, math.inf))
    assert length.low < length.high


def test_samples_that_agree_within_prompts_count_once_and_others_more_often():
    whole = rate_interval([1.0, 0.0] * 20)
    alike = rate_interval([0.375, 0.625] * 20)
    assert whole.value == alike.value == 0.5
    assert alike.high - alike.low < 0.4 * (whole.high - whole.low)
    # All but a prompt are 0 or 1: nearly Wilson's, without a jump.
    almost = rate_interval([1.0, 0.0] * 19 + [1.0, 0.125])
    assert almost.high - almost.low == pytest.approx(whole.high - whole.low, rel=0.08)


def test_rates_mirror_and_differences_change_sign():
    values = [0.0, 0.125, 0.125, 0.5, 1.0, 0.875, 0.25, 0.0]
    rate, other = rate_interval(values), rate_interval([1 - v for v in values])
    assert (rate.low, rate.high) == pytest.approx((1 - other.high, 1 - other.low))
    before, after = ({str(i): v for i, v in enumerate(side)} for side in (values, [*values[::-1][:-1], 0.75]))
    ahead, back = paired_difference(before, after), paired_difference(after, before)
    assert (ahead.low, ahead.high) == pytest.approx((-back.high, -back.low))
    assert paired_difference(dict(reversed(before.items())), after) == ahead, "the order in files does not matter"


def test_pairing_takes_out_how_hard_each_prompt_is():
    before = {str(i): (i % 10) / 10 for i in range(100)}
    after = {p: v + 0.05 + 0.01 * (int(p) % 2) for p, v in before.items()}
    paired, loose = paired_difference(before, after), rate_interval(list(after.values()))
    assert paired.value == pytest.approx(0.055)
    assert 0.05 <= paired.low < paired.high <= 0.06
    assert loose.high - loose.low > 10 * (paired.high - paired.low)


def shifted(by, n=320):
    before = {str(i): 0.5 for i in range(n)}
    return before, {p: v + by for p, v in before.items()}


def test_seeds_that_disagree_show_in_the_interval():
    estimate = paired_over_seeds([shifted(0.1), shifted(-0.1)])
    assert estimate.value == pytest.approx(0.0)
    # Two seeds say next to nothing: 12.7 standard errors, cut at what a difference can be.
    assert (estimate.low, estimate.high) == (-1.0, 1.0)
    three = paired_over_seeds([shifted(0.1), shifted(0.2), shifted(0.3)])
    assert three.high - 0.2 == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-5)


def test_what_prompts_vary_is_in_the_interval_where_seeds_agree():
    """Half of the prompts gain .4 with every seed, half lose .4: other prompts would give another mean."""
    before = {str(i): 0.5 for i in range(40)}
    after = {p: v + (0.4 if int(p) % 2 else -0.4) for p, v in before.items()}
    seeds = [(before, {p: v + 0.01 * s for p, v in after.items()}) for s in (-1, 0, 1)]
    by_prompts = paired_difference(before, after)
    estimate = paired_over_seeds(seeds)
    assert estimate.high - estimate.low > by_prompts.high - by_prompts.low
    # Seeds of one mean tell nothing of how seeds differ.
    for num_seeds in (1, 3):
        alike = paired_over_seeds([(before, after)] * num_seeds)
        assert asdict(alike) == pytest.approx(asdict(by_prompts))


def test_seeds_with_prompts_of_their_own_are_compared_by_their_means():
    first, second, third = shifted(0.1), shifted(0.2), shifted(0.3)
    second = tuple({f"other {p}": v for p, v in side.items()} for side in second)
    assert paired_over_seeds([first, second, third]).value == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("interval", "given", "words"),
    [
        (rate_interval, ([],), "none"),
        (rate_interval, ([0.5, -0.5],), r"\[0, 1\], got -0.5"),
        (mean_interval, ([1.0, math.nan],), "nan"),
        (over_seeds, ([0.5],), r"no interval: .*at least 2 .* got 1"),
        (over_seeds, ([0.3, 0.1 + 0.2, 0.3],), r"no interval: 3 seeds of the same value \(0.3\)"),
        (paired_difference, ({"a": 1.0}, {"a": 1.0, "b": 0.0}), "'b'"),
        (paired_difference, ({}, {}), "none"),
        (paired_over_seeds, ([],), "none"),
    ],
)
def test_what_has_no_interval_is_refused(interval, given, words):
    with pytest.raises(DataError, match=words):
        interval(*given)


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 10])
@pytest.mark.parametrize(("rate", "n"), [(0.5, 64), (0.8, 64), (0.97, 64), (0.99, 30)])
def test_over_seeds_an_interval_holds_the_rate_or_there_is_none(rate, n, num_seeds):
    """One seed in ten fails altogether: where that shows, the interval is of all seeds, else of the others."""
    numbers = np.random.default_rng(num_seeds)
    for failing in (0.0, 0.1):
        holds = []
        for _ in range(400):
            fails = numbers.random(num_seeds) < failing
            values = np.where(fails, 0.0, numbers.binomial(n, rate, num_seeds) / n)
            truth = rate * (1 - failing) if fails.any() else rate
            try:
                estimate = over_seeds(list(values), (0.0, 1.0))
            except DataError:
                continue
            assert 0 <= estimate.low <= estimate.high <= 1
            holds.append(estimate.low <= truth <= estimate.high)
        # A standard error of 400 draws is .011.
        assert fmean(holds) >= 0.91
        assert len(holds) >= 100


GROUPS = sorted({case.group for case in cases()})


@pytest.mark.run
@pytest.mark.parametrize("n", [10, 100])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.nightly
def test_intervals_hold_the_truth_as_often_as_they_say(group, n):
    """The whole table is printed by benchmarks/coverage.py; here a few hundred draws of each case."""
    shares = [coverage(case, n, 250) for case in cases() if case.group == group]
    # A standard error of 250 draws is .014, of the mean of eight such cases .005.
    assert fmean(shares) >= 0.93
    assert min(shares) >= 0.89
    # Of ten greedy pairs few differ, or none: then no narrower interval would hold the truth often enough.
    assert fmean(shares) <= (0.995 if n < 100 and group == "gains, greedy" else 0.975)
