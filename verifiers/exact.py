"""Text equality, after normalisation that changes no meaning."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Literal

from pydantic import Field

from pipeline.errors import DataError
from pipeline.types import Attempt, Verdict
from verifiers.answer import after_thinking, final_answer
from verifiers.base import VerifierParams, verifier

INVISIBLE = dict.fromkeys((0x200B, 0x2060, 0xFEFF, 0x00AD))
"""Characters that are never part of what a text says."""
ARTICLES = re.compile(r"\b(?:a|an|the)\b\s*", re.IGNORECASE)


class ExactParams(VerifierParams):
    """What two texts may differ in."""

    where: Literal["answer", "response"] = Field("answer", description="the final answer, or all after thinking")
    ignore_case: bool = True
    ignore_articles: bool = False
    ignore_punctuation: bool = Field(False, description="leaves letters, digits and single spaces")
    max_chars: int = Field(10_000, ge=1, description="longer answers are wrong")


@verifier
def exact(attempt: Attempt, params: ExactParams) -> Verdict:
    """1 if the answer is the reference, or one of a list of references, up to what `params` ignore."""
    golds = _golds(attempt.reference)
    found = final_answer(attempt) if params.where == "answer" else after_thinking(attempt)
    if found.text is None:
        return found.no_answer()
    if found.others:
        return Verdict("graded", 0.0, "several_answers", found.text)
    if len(found.text) > params.max_chars:
        return Verdict("graded", 0.0, f"too_long: {len(found.text)} characters", found.text[:200])
    said = _normal(found.text, params)
    right = any(said == _normal(g, params) for g in golds)
    return Verdict("graded", float(right), "equal" if right else f"different: {said:.80}", found.text)


def normal(text: str, ignore_case: bool = True) -> str:
    """`text` in Unicode form NFKC, spaces collapsed, a final dot and surrounding quotes off, in one case."""
    text = " ".join(unicodedata.normalize("NFKC", text.translate(INVISIBLE)).split())
    text = text.removesuffix(".")
    if len(text) > 1 and text[0] in "\"'“‘" and text[-1] in "\"'”’":
        text = text[1:-1].strip()
    return text.casefold() if ignore_case else text


def _normal(text: str, params: ExactParams) -> str:
    text = normal(text, params.ignore_case)
    if params.ignore_punctuation:
        text = " ".join("".join(c if c.isalnum() else " " for c in text).split())
    return ARTICLES.sub("", text) if params.ignore_articles else text


def _golds(reference: Any) -> list[str]:
    golds = reference if isinstance(reference, list) else [reference]
    if not golds or not all(isinstance(g, str | int | float) and str(g).strip() for g in golds):
        raise DataError(f"reference: expected a non-empty text or a list of such, got {reference!r:.80}")
    return [str(g) for g in golds]
