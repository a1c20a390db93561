"""The `guard` section of a recipe: the signs that RL collapses, and what is then done."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, field_validator

from verizero.pipeline.config.sections import Section
from verizero.pipeline.near import did_you_mean

RATE_AFTER_ROLL_BACK = 0.5
"""Factor of the learning rate at each roll-back: unchanged, the run would go the same way again."""

LIMITS = {
    "min_entropy": 0.1,
    "max_entropy": 5.0,
    "min_length": 0.25,
    "max_truncated": 0.4,
    "max_kl": 1.0,
    "max_clip_fraction": 0.3,
    "max_flat": 0.95,
    "max_unanswered": 0.3,
}
"""The limits of the signs of a collapse."""
BOUNDS = {
    **dict.fromkeys(LIMITS, (0.0, 1.0)),  # shares, and rises of shares
    "max_entropy": (1.0, math.inf),
    "max_kl": (0.0, math.inf),
}
"""Above which number, and up to which, each limit may be."""
BELOW = frozenset({"min_entropy", "min_length", "max_flat"})
"""Limits that must be below their upper bound: at 1 they would stop every run, or none."""


class GuardConfig(Section):
    """Signs of a collapse: medians over the last `window` steps, compared to the stage's first steps."""

    action: Literal["none", "warn", "stop", "roll_back"] = Field(
        "warn",
        description="action at a sign; roll_back: return to the last checkpoint before it, with half the learning rate",
    )
    window: int = Field(5, ge=1, description="number of steps in a median")
    limits: dict[str, float | None] = Field(
        {},
        description="limits that differ, by name; null: not watched. max_kl 1 (k3 to the reference, nats a token) and "
        "max_flat 0.95 (share of groups with equal rewards that are not all right) are absolute; min_entropy 0.1, "
        "unless most groups are all right, max_entropy 5 and min_length 0.25 are shares of the first steps'; "
        "max_truncated 0.4, max_clip_fraction 0.3 and max_unanswered 0.3 (no answer, or its check timed out) are rises "
        "of shares",
    )
    max_roll_backs: int = Field(2, ge=1, description="most roll-backs in one stage; the next collapse ends the run")

    @field_validator("limits")
    @classmethod
    def _known(cls, value: dict[str, float | None]) -> dict[str, float | None]:
        for name, limit in value.items():
            if name not in LIMITS:
                raise ValueError(f"no sign is called {name!r}; {did_you_mean(name, LIMITS, ', '.join(LIMITS))}")
            low, high = BOUNDS[name]
            if limit is not None and not (low < limit < high or (limit == high and name not in BELOW)):
                most = f" and {'below' if name in BELOW else 'at most'} {high:g}" if high < math.inf else ""
                raise ValueError(f"{name} must be above {low:g}{most}, got {limit:g}; null: not watched")
        return value

    def limit_of(self, sign: str) -> float | None:
        """Return the limit of a sign; None if it is not watched."""
        return self.limits.get(sign, LIMITS[sign])
