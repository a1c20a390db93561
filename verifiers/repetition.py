"""Repetition: the share of word n-grams that occurred before in the response."""

from __future__ import annotations

from pydantic import Field

from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import is_blank
from verizero.verifiers.base import VerifierParams, verifier

MAX_CHARS = 200_000
"""Characters that are read, from the end, where loops are."""


class RepetitionParams(VerifierParams):
    """The length of a repeated piece, and the share of repetition that costs nothing."""

    ngram: int = Field(4, ge=1, le=64, description="words in a row; characters for scripts without spaces")
    free_share: float = Field(0.2, ge=0, lt=1, description="repeated share that costs nothing")


@verifier
def repetition(attempt: Attempt, params: RepetitionParams) -> Verdict:
    """Return 1 - (repeated share of n-grams - free share) / (1 - free share), in [0, 1]; too few words score 1.

    The repeated share is 1 - distinct n-grams / n-grams. A text without spaces is taken by characters, which finds a
    loop of one character or of an unspaced script. An empty response is no answer.
    """
    text = attempt.response[-MAX_CHARS:].casefold()
    words = text.split()
    if is_blank(text):
        return Verdict("no_answer", 0.0, "empty_answer")
    units = list("".join(words)) if max(map(len, words)) > 200 else words
    grams = [tuple(units[i : i + params.ngram]) for i in range(len(units) - params.ngram + 1)]
    share = 1.0 - len(set(grams)) / len(grams) if grams else 0.0
    score = 1.0 - max(0.0, share - params.free_share) / (1.0 - params.free_share)
    return Verdict("graded", score, f"repeated_share: {share:.3f}")
