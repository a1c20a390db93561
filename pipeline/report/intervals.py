"""Intervals of 95%: of a rate and of a mean over prompts, of a difference of the same prompts, and over seeds.

Closed forms: the same values give the same bytes, without a seed. `benchmarks/coverage.py` simulates how often they
hold the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from verizero.pipeline.errors import DataError

Z = NormalDist().inv_cdf(0.975)
"""Standard deviations of a normal mean on either side."""
EXACT_UNTIL = 100
"""Degrees of freedom up to which Student's t is computed exactly; beyond, its expansion errs in the sixth digit."""
UNSEEN = 2
"""Prompts of another value that a mean of equal values is widened by, as Bonett and Price do for pairs of 0 and 1."""
NORMAL_KURTOSIS = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and the ends of its interval."""

    value: float
    low: float
    high: float


def rate_interval(values: Sequence[float]) -> Estimate:
    """The mean of values in [0, 1], one a prompt, with its interval: Wilson's, at the effective number of prompts.

    Prompts that are right or wrong (0 or 1) count as they are. Several samples a prompt say more: n prompts whose
    values spread by s count as n * m(1 - m) / s^2, where m(1 - m) is the spread of zeros and ones of the same mean m,
    and Student's t takes the place of the normal quantile, as s is estimated. Where a few prompts make up all of s,
    it is too small more often than not, so s^2 is moved towards m(1 - m) by half of the variance that its fourth
    moment gives it beyond a normal one. Equal values count as zeros and ones do.

    Raises: DataError for no values, or values outside [0, 1].
    Source: Wilson (1927); effective numbers as in Franco et al. (2019), J. Surv. Stat. Methodol. 7, 334.
    """
    data = _data(values)
    if data.min() < 0 or data.max() > 1:
        raise DataError(f"a rate needs values in [0, 1], got {data.min()} to {data.max()}; use mean_interval")
    n, mean = data.size, float(data.mean())
    whole = mean * (1 - mean)
    effective, quantile = float(n), Z
    squares, lumps = _spread(data - mean)
    if squares > 0 and not np.isin(data, (0.0, 1.0)).all():
        share = min(1.0, max(0.0, lumps - NORMAL_KURTOSIS / n) / 2)
        effective = n * whole / ((1 - share) * squares / (n - 1) + share * whole)
        quantile = t_quantile(n - 1)
    a = quantile**2 / effective
    middle, half = (mean + a / 2) / (1 + a), math.sqrt(a * whole + a * a / 4) / (1 + a)
    return _within(mean, middle - half, middle + half, (0.0, 1.0))


def mean_interval(values: Sequence[float], bounds: tuple[float, float] = (-math.inf, math.inf)) -> Estimate:
    """The mean of any values, one a prompt, with its interval: Student's t, widened and moved where few prompts vary.

    Where few prompts make up all of the spread, up to UNSEEN prompts are added that differ by the size of the values
    that are not 0 (1 if all are), and the middle moves by half of the correction for skewness of Johnson's t: a mean of
    few large gains is more likely too low than too high. Equal values so have a width, like the rule of three.

    Raises: DataError for no values.
    Source: Bonett and Price (2012), J. Educ. Behav. Stat. 37, 479; Johnson (1978), JASA 73, 536.
    """
    data = _data(values)
    n, mean = data.size, float(data.mean())
    squares, lumps = _spread(data - mean)
    # A normal sample has lumps of 3 / n; equal values have no spread, and all of it is unseen.
    sparse = max(0.0, 1 - NORMAL_KURTOSIS / (n * lumps)) if lumps > 0 else 1.0
    size = float((data**2).sum() / np.count_nonzero(data)) if data.any() else 1.0
    squares += UNSEEN * sparse * size
    t = t_quantile(max(n - 1, 1))
    half = t * math.sqrt(squares / (max(n - 1, 1) * n))
    moved = float(((data - mean) ** 3).sum()) / (squares * n) * (1 + 2 * t * t) / 12
    moved = max(-half, min(half, moved))
    return _within(mean, mean + moved - half, mean + moved + half, bounds)


def paired_difference(before: Mapping[str, float], after: Mapping[str, float]) -> Estimate:
    """The mean over prompts of after - before, rates of the same prompts, with its interval.

    Keys are prompt ids. Pairing takes out how hard each prompt is, which is most of what varies. It speaks of prompts
    alone: another seed of training may differ by more.

    Raises: DataError if the two are not of the same prompts, or of none.
    """
    differences = _differences(before, after)
    # Sorted: a sum must not depend on the order in the files.
    return mean_interval([differences[p] for p in sorted(differences)], (-1.0, 1.0))


def over_seeds(values: Sequence[float], bounds: tuple[float, float] = (-math.inf, math.inf)) -> Estimate:
    """The mean of one value a seed with its interval by Student's t, of which `bounds` are the ends: (0, 1) for rates.

    Near a bound two or three seeds give a wider interval than is needed. It speaks of seeds like those given: of a
    failure of one seed in ten, n seeds show nothing in 0.9^n of cases.

    Raises: DataError for fewer than two, or for equal values: neither tells how seeds differ.
    """
    data = _data(values)
    if data.size < 2:
        raise DataError(f"no interval: over seeds it needs at least 2 of them, got {data.size}; run more seeds")
    mean, spread = float(data.mean()), float(data.std(ddof=1))
    if spread <= 1e-12 * max(1.0, abs(mean)):  # of equal values it is rounding
        raise DataError(f"no interval: {data.size} seeds of the same value ({mean:g}) do not tell how seeds differ")
    half = t_quantile(data.size - 1) * spread / math.sqrt(data.size)
    return _within(mean, mean - half, mean + half, bounds)


def paired_over_seeds(pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> Estimate:
    """The mean over seeds and prompts of after - before, one pair of rates by prompt a seed, with its interval.

    Student's t over the means of the seeds, plus what the prompts vary beyond chance, which seeds with the same
    prompts share and so do not show. With one seed it speaks of prompts alone, as `paired_difference` does; seeds of
    equal means tell nothing of how seeds differ, and are taken as one.

    Raises: DataError for no seeds, or sides that are not of the same prompts.
    """
    if not pairs:
        raise DataError("an interval over seeds needs at least one of them, got none")
    seeds = [_differences(before, after) for before, after in pairs]
    shared = sorted(set.intersection(*(set(own) for own in seeds)))
    means = [math.fsum(own.values()) / len(own) for own in seeds]
    if max(means) - min(means) < 1e-12:
        # A prompt that some seeds lack counts as it is in the seeds that have it.
        names = sorted(set().union(*seeds))
        each = [[own[p] for own in seeds if p in own] for p in names]
        return mean_interval([math.fsum(v) / len(v) for v in each], (-1.0, 1.0))
    by_seed = over_seeds(means)
    half = math.hypot(
        by_seed.high - by_seed.value, _half_of_prompts(np.array([[own[p] for p in shared] for own in seeds]))
    )
    return _within(by_seed.value, by_seed.value - half, by_seed.value + half, (-1.0, 1.0))


@lru_cache(maxsize=1024)
def t_quantile(df: int) -> float:
    """Student's t at 97.5%, for whole degrees of freedom. Source: Abramowitz and Stegun (1964), 26.7.3 to 26.7.5."""
    if df < 1:
        raise DataError(f"degrees of freedom must be >= 1, got {df}")
    if df > EXACT_UNTIL:
        return Z + (Z**3 + Z) / (4 * df) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * df**2)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, df) < 0.95 else (low, middle)
    return math.tan(low) * math.sqrt(df)


def _inside(angle: float, df: int) -> float:
    """Return the chance that |t| is below tan(angle) * sqrt(df)."""
    cosine, sine = math.cos(angle), math.sin(angle)
    term, total = (cosine, 0.0) if df % 2 else (1.0, 0.0)
    for i in range(1 + df % 2, df, 2):
        total += term
        term *= cosine**2 * i / (i + 1)
    return 2 / math.pi * (angle + sine * total) if df % 2 else sine * total


def _half_of_prompts(table: NDArray[np.float64]) -> float:
    """Half of the interval that prompts give, beyond what is chance of a seed; `table` is seeds by prompts."""
    num_seeds, n = table.shape
    if n < 2:
        return 0.0
    by_prompt, by_seed = table.mean(axis=0), table.mean(axis=1)
    rest = table - by_prompt - by_seed[:, None] + table.mean()
    chance = float((rest**2).sum()) / ((num_seeds - 1) * (n - 1)) / num_seeds
    return t_quantile(n - 1) * math.sqrt(max(0.0, float(by_prompt.var(ddof=1)) - chance) / n)


def _differences(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise DataError(
            f"a paired difference needs the same prompts on both sides, {len(odd)} are on one only, e.g. {odd[0]!r}; "
            "evaluate both on the same file"
        )
    if not before:
        raise DataError("a paired difference needs at least one prompt, got none; evaluate at least one prompt")
    return {p: after[p] - before[p] for p in before}


def _spread(deviations: NDArray[np.float64]) -> tuple[float, float]:
    """The sum of squares, and the share of it that falls on few values: 1 if on one, 1 / n if on all alike."""
    squares = float((deviations**2).sum())
    # Below this, equal values differ by rounding alone.
    if squares <= 1e-24 * deviations.size:
        return 0.0, 0.0
    return squares, float((deviations**4).sum()) / squares**2


def _data(values: Sequence[float]) -> NDArray[np.float64]:
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        raise DataError("an interval needs at least one value, got none; evaluate at least one prompt")
    if not np.isfinite(data).all():
        raise DataError(f"an interval needs finite values, got {data[~np.isfinite(data)][0]}")
    return data


def _within(value: float, low: float, high: float, bounds: tuple[float, float]) -> Estimate:
    """The estimate inside the bounds; rounding must not put its value outside of its interval."""
    return Estimate(value, max(bounds[0], min(low, value)), min(bounds[1], max(high, value)))
