"""Length: the soft penalty for overlong responses, as a score in [0, 1]."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import VerifierParams, verifier


class LengthParams(VerifierParams):
    """The length at which the penalty starts, and the length at which it is full."""

    max_length: int = Field(16_384, ge=1, description="from here on the score is 0")
    buffer: int = Field(4_096, ge=0, description="units over which the score falls from 1 to 0 at the end")
    min_length: int = Field(0, ge=0, description="shorter responses score 0")
    unit: Literal["characters", "words"] = "characters"

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.buffer > self.max_length or self.min_length > self.max_length - self.buffer:
            raise ValueError(
                f"min_length {self.min_length} <= max_length {self.max_length} - buffer {self.buffer} must hold"
            )
        return self


@verifier
def length(attempt: Attempt, params: LengthParams) -> Verdict:
    """Return min(1, (max_length - length) / buffer), at least 0: 1 + the soft overlong penalty of DAPO.

    A response cut at its token limit scores 0. The whole response counts, thinking included.
    Source: arXiv 2503.14476, eq. 13 (there in [-1, 0] and in tokens; a verifier sees text).
    """
    n = len(attempt.response) if params.unit == "characters" else len(attempt.response.split())
    if attempt.truncated:
        return Verdict("graded", 0.0, "truncated")
    if n < params.min_length:
        return Verdict("graded", 0.0, f"too_short: {n} {params.unit}")
    over = n - (params.max_length - params.buffer)
    if over <= 0:
        return Verdict("graded", 1.0, "within_length")
    score = max(0.0, 1.0 - over / params.buffer) if params.buffer else 0.0
    return Verdict("graded", score, f"overlong: {n} {params.unit}")
