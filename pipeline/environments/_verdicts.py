"""The answer in a message of the policy, and the verdict for a reward of another library's range."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import AfterValidator

from verizero.pipeline.errors import EnvironmentFailed
from verizero.pipeline.types import Message, Verdict

THINKING, END_OF_THINKING = "<think>", "</think>"
MAX_REASON = 300


def answer_of(message: Message) -> str:
    """Return the message's words after its thinking, without spaces around them; empty if thinking does not end."""
    _, end, after = message.content.rpartition(END_OF_THINKING)
    if not end and THINKING in message.content:
        return ""
    return after.strip()


def verdict_of(reward: float, reward_range: tuple[float, float], reason: str = "") -> Verdict:
    """Return the verdict for a reward of that range, as a score in [0, 1]; its reason says if it had to be clamped.

    Raises: EnvironmentFailed if it is not finite, which says nothing about the policy.
    """
    if not math.isfinite(reward):
        raise EnvironmentFailed(f"its reward is {reward}, which is not finite")
    low, high = reward_range
    clamped = min(high, max(low, reward))
    note = "" if clamped == reward else f" (outside {low:g} to {high:g}: clamped)"
    score = (clamped - low) / (high - low)
    text = f"reward {reward:.6g}{note}" + (f": {reason}" if reason else "")
    return Verdict("graded", score, text[:MAX_REASON])


def _checked(value: tuple[float, float]) -> tuple[float, float]:
    low, high = value
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"reward_range must be [lowest, highest], two finite numbers in order, got [{low}, {high}]")
    return value


RewardRange = Annotated[tuple[float, float], AfterValidator(_checked)]
"""Lowest and highest reward of another library: finite, and in order."""
