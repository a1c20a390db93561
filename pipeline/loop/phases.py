"""`Phases`: the functions of one step of RL, which a stage makes once a round.

A caller that watches each phase (Prefect) wraps them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from verizero.pipeline.scoring.score import EarlyGrading, GradingTally
from verizero.pipeline.scoring.select import GroupKind
from verizero.pipeline.types import Group, Prompt, Rollout, StepMetrics

PhaseWrapper = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""Wraps a phase, given its name and function, and returns what is called instead, e.g. a Prefect task."""


def unwrapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function itself, where nobody watches the phases."""
    return function


@dataclass(frozen=True, slots=True)
class Generated:
    """The responses to this rank's prompts, and their grading if it has already begun."""

    rollouts: list[Rollout]
    early_grading: EarlyGrading | None
    """None if grading begins after all responses are sampled."""


@dataclass(frozen=True)
class Phases:
    """The functions that each step of a round calls, by phase."""

    next_prompts: Callable[[int], list[Prompt]]
    generate: Callable[[Sequence[Prompt], int], Generated]
    verify: Callable[[Sequence[Prompt], Generated], tuple[list[Group], GradingTally]]
    select: Callable[[Sequence[Group]], tuple[list[Group], dict[GroupKind, int]]]
    update: Callable[[Sequence[Group]], StepMetrics]
    publish: Callable[[], None]

    def wrapped(self, wrap: PhaseWrapper) -> Phases:
        """Return the phases with each function wrapped."""
        return Phases(**{f.name: wrap(f.name, getattr(self, f.name)) for f in fields(self)})
