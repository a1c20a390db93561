"""Text equality, after normalisation that changes no meaning."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

from pydantic import Field

from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import after_thinking, one_answer, too_long, without_decoration
from verizero.verifiers.base import VerifierParams, verifier

INVISIBLE = dict.fromkeys((0x200B, 0x2060, 0xFEFF, 0x00AD))
"""Invisible characters that change no meaning."""
ARTICLES = re.compile(r"\b(?:a|an|the)\b\s*", re.IGNORECASE)


class ExactParams(VerifierParams):
    """Differences between texts that are ignored."""

    where: Literal["answer", "response"] = Field("answer", description="the final answer, or all after thinking")
    ignore_case: bool = True
    ignore_articles: bool = False
    ignore_punctuation: bool = Field(False, description="leaves letters, digits and single spaces")
    max_chars: int = Field(10_000, ge=1, description="longer answers are wrong")


@verifier
def exact(attempt: Attempt, params: ExactParams) -> Verdict:
    """Return 1 if the answer is the reference, or one of a list of references, up to what `params` ignore."""
    reference = attempt.reference
    golds = reference if isinstance(reference, list) else [reference]
    if not golds or not all(isinstance(g, str | int | float) and str(g).strip() for g in golds):
        raise DataError(f"reference: expected a non-empty text or a list of such, got {reference!r:.80}")
    text = one_answer(attempt, params.max_chars) if params.where == "answer" else _response(attempt, params.max_chars)
    if isinstance(text, Verdict):
        return text
    answer = _normal(text, params)
    right = any(answer in (_normal(g, params), _normal(without_decoration(g), params)) for g in map(str, golds))
    return Verdict("graded", float(right), "equal" if right else f"different: {answer:.80}", text)


def _response(attempt: Attempt, max_chars: int) -> str | Verdict:
    part = after_thinking(attempt)
    if part.text is None:
        return part.no_answer()
    return part.text if len(part.text) <= max_chars else too_long(part.text)


def normal(text: str, ignore_case: bool = True) -> str:
    """Return `text` in Unicode form NFKC, spaces collapsed, without final dot and outer quotes, in one case."""
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
