"""Converts rewards of other libraries, which have their own ranges, to verdicts in [0, 1]."""

from __future__ import annotations

import math

from verizero.pipeline.errors import EnvironmentFailed
from verizero.pipeline.types import Verdict

MAX_REASON = 300


def score_of(reward: float, low: float, high: float) -> tuple[float, str]:
    """Return a reward of the range low to high as a number in [0, 1], and a note if it had to be clamped.

    Raises: EnvironmentFailed if it is not finite, which says nothing about the policy.
    """
    if not math.isfinite(reward):
        raise EnvironmentFailed(f"its reward is {reward}, which is not finite")
    clamped = min(high, max(low, reward))
    note = "" if clamped == reward else f" (outside {low:g} to {high:g}: clamped)"
    return (clamped - low) / (high - low), note


def verdict_of(reward: float, reward_range: tuple[float, float], reason: str = "") -> Verdict:
    """Return the verdict for a reward of that range. Raises: EnvironmentFailed if it is not finite."""
    score, note = score_of(reward, *reward_range)
    text = f"reward {reward:.6g}{note}" + (f": {reason}" if reason else "")
    return Verdict("graded", score, text[:MAX_REASON])


def checked_range(value: tuple[float, float]) -> tuple[float, float]:
    """Return the range. Raises: ValueError unless its ends are finite and in order."""
    low, high = value
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"reward_range must be [lowest, highest], two finite numbers in order, got [{low}, {high}]")
    return value
