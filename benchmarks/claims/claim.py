"""A published claim, its small test, and the verdict on it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Outcome = Literal["holds", "fails", "not at this scale"]
T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Student's t, 97.5th percentile, by degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to train: a recipe, with changes."""

    name: str
    recipe: str
    """Path from the repository's root."""
    changes: tuple[str, ...] = ()
    """Changes of the recipe, as `--set` takes them."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, with its 95% interval by Student's t."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Claim:
    """A published result, and the test of it. All of it is committed before the first run."""

    name: str
    title: str
    source: str
    """arXiv id or address."""
    published: str
    """The numbers that were published, and on what."""
    test: str
    """The training that is done here, and how it differs from the published one."""
    statistic: str
    """The number that is computed for each seed, from one run of each arm."""
    rule: str
    """When the claim holds, and when it fails; in between it is not decided at this scale."""
    arms: tuple[Arm, ...]
    seeds: int
    value: Callable[[Mapping[str, Path]], float]
    """The statistic of one seed, from the folder of each arm's run."""
    judge: Callable[[Interval], Outcome]


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of at least two values, one a seed, with its 95% interval."""
    mean = statistics.fmean(values)
    half = T_975[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def above(limit: float, fails_below: float) -> Callable[[Interval], Outcome]:
    """Return the rule: holds if the whole interval is above `limit`, fails if all of it is below `fails_below`."""

    def judge(x: Interval) -> Outcome:
        return "holds" if x.low > limit else "fails" if x.high < fails_below else "not at this scale"

    return judge


def within(limit: float) -> Callable[[Interval], Outcome]:
    """Return the rule: holds if the whole interval is within +-limit, fails if none of it is."""

    def judge(x: Interval) -> Outcome:
        if -limit < x.low and x.high < limit:
            return "holds"
        return "fails" if x.low > limit or x.high < -limit else "not at this scale"

    return judge


def exactly_zero(x: Interval) -> Outcome:
    """Judge a value that is never negative: holds if it is 0 for all seeds, fails if the interval is above 0."""
    return "holds" if x.high == 0 else "fails" if x.low > 0 else "not at this scale"
