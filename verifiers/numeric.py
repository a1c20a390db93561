"""One number, compared exactly or within a stated tolerance."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from pydantic import Field

from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import final_answer
from verizero.verifiers.base import VerifierParams, verifier

MARKS = {"\u2212": "-", "\u2013": "-", "\\,": "", "\\!": "", "{,}": ",", "~": " ", "\\ ": " "}
MAX_DIGITS, MAX_EXPONENT = 1_000, 1_000
DECIMAL = r"(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?|\d+\."
NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<number>{DECIMAL})"
    r"(?:\s*(?:[eE]|(?:\\times|\\cdot|[x*×])\s*10\s*\^)\s*\{?(?P<exponent>[+-]?\d{1,6})\}?)?"
    r"(?:\s*/\s*(?P<below>\d+))?\s*(?P<rest>.*)",
    re.DOTALL,
)
FRACTION = re.compile(
    r"(?P<sign>[+-]?)\s*\\[dt]?frac\s*(?:\{(?P<above>\d+)\}|(?P<top>\d))\s*(?:\{(?P<below>\d+)\}|(?P<bottom>\d))"
    r"\s*(?P<rest>.*)",
    re.DOTALL,
)
MACRO = re.compile(r"\\(?:text|mathrm|textrm|rm|operatorname)\s*\{\s*([^{}]*?)\s*\}")


class NumericParams(VerifierParams):
    """The tolerance. With both tolerances 0, numbers are compared as exact rationals."""

    abs_tol: float = Field(0.0, ge=0, allow_inf_nan=False)
    rel_tol: float = Field(0.0, ge=0, le=1, allow_inf_nan=False, description="relative to the reference")
    unit: str | None = Field(None, description="may follow the number; any other text after it is wrong")


@verifier
def numeric(attempt: Attempt, params: NumericParams) -> Verdict:
    """Return 1 if the answer is one number within the tolerance of the reference.

    Reference: a number, its text, or {"value", "abs_tol"?, "rel_tol"?, "unit"?}, which wins over the parameters. Read:
    signs, thousands commas, decimals, a/b, \\frac, scientific notation, percent (35% is 0.35). Infinities and NaN are
    no numbers. Digits and exponents are bounded before anything is computed. Two spellings of a number are one answer.
    """
    gold, abs_tol, rel_tol, unit = _gold(attempt.reference, params)
    answer = final_answer(attempt)
    if answer.text is None:
        return answer.no_answer()
    values = {number(candidate, unit) for candidate in answer.candidates}
    if len(values) > 1:
        return Verdict("graded", 0.0, "several_answers", answer.text)
    value = values.pop()
    if value is None:
        return Verdict("graded", 0.0, f"not_one_number: {answer.text:.80}", answer.text)
    right = abs(value - gold) <= max(abs_tol, rel_tol * abs(gold))
    return Verdict("graded", float(right), "equal" if right else f"wrong_number: {answer.text:.80}", answer.text)


def number(text: str, unit: str | None = None) -> Fraction | None:
    """Return the exact value of a text that is one number (and at most `unit` or a percent sign), else None."""
    if len(text) > MAX_DIGITS:
        return None
    text = unicodedata.normalize("NFKC", text)
    for mark, plain in MARKS.items():
        text = text.replace(mark, plain)
    text = MACRO.sub(r"\1", text).strip()
    if match := FRACTION.fullmatch(text):
        above, below, exponent = match["above"] or match["top"], int(match["below"] or match["bottom"]), 0
    else:
        match = NUMBER.fullmatch(text)
        if match is None or not match["number"]:
            return None
        above, below, exponent = match["number"].replace(",", ""), int(match["below"] or 1), int(match["exponent"] or 0)
    # An exponent of a million would make a number of a million digits.
    if below == 0 or abs(exponent) > MAX_EXPONENT:
        return None
    scale = _scale(match["rest"].strip(), unit)
    if scale is None:
        return None
    value = Fraction(above.removesuffix(".")) * Fraction(10) ** exponent / below * scale
    return -value if match["sign"] == "-" else value


def _scale(rest: str, unit: str | None) -> Fraction | None:
    rest = rest.removesuffix(".")
    if rest in ("%", "\\%", "percent"):
        return Fraction(1) if unit in ("%", "percent") else Fraction(1, 100)
    return Fraction(1) if rest == "" or (unit is not None and rest == unit) else None


def _gold(reference: Any, params: NumericParams) -> tuple[Fraction, Fraction, Fraction, str | None]:
    stated: Mapping[str, Any] = reference if isinstance(reference, Mapping) else {"value": reference}
    unit = stated.get("unit", params.unit)
    value = stated.get("value")
    gold = number(str(value), unit) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    if gold is None:
        raise DataError(f"reference: expected a number, its text or an object with 'value', got {reference!r:.80}")
    abs_tol, rel_tol = (Fraction(stated.get(n, getattr(params, n))) for n in ("abs_tol", "rel_tol"))
    return gold, abs_tol, rel_tol, unit
