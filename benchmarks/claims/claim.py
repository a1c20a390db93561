"""A published claim, its small test, and the verdict on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verizero.pipeline.report.intervals import Estimate

Outcome = Literal["holds", "fails", "not at this scale"]


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to train: a recipe, with changes."""

    name: str
    recipe: str
    """Path from the repository's root."""
    changes: tuple[str, ...] = ()
    """Changes of the recipe, as `--set` takes them."""


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
    judge: Callable[[Estimate], Outcome]


def above(limit: float, fails_below: float) -> Callable[[Estimate], Outcome]:
    """Return the rule: holds if the whole interval is above `limit`, fails if all of it is below `fails_below`."""

    def judge(x: Estimate) -> Outcome:
        return "holds" if x.low > limit else "fails" if x.high < fails_below else "not at this scale"

    return judge


def within(limit: float) -> Callable[[Estimate], Outcome]:
    """Return the rule: holds if the whole interval is within +-limit, fails if none of it is."""

    def judge(x: Estimate) -> Outcome:
        if -limit < x.low and x.high < limit:
            return "holds"
        return "fails" if x.low > limit or x.high < -limit else "not at this scale"

    return judge


def exactly_zero(x: Estimate) -> Outcome:
    """Judge a value that is never negative: holds if it is 0 for all seeds, fails if the interval is above 0."""
    return "holds" if x.high == 0 else "fails" if x.low > 0 else "not at this scale"
