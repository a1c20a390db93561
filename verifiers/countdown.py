"""The countdown game: reach a target with the given numbers, each used at most once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import one_answer
from verizero.verifiers.base import VerifierParams, verifier

TOKEN = re.compile(r"\s*(?:(?P<number>[0-9]{1,12})(?!\d)|(?P<sign>[-+*/(){}=]|\\[dt]?frac))")
SIGNS = {"×": "*", "·": "*", "∗": "*", "÷": "/", "−": "-", "–": "-", "\\times": "*", "\\cdot": "*", "\\div": "/",
         "\\left": "", "\\right": "", "[": "(", "]": ")", "\u22c5": "*", "\u2219": "*", "x": "*"}  # fmt: skip
MAX_TOKENS = 400


class BadExpression(Exception):
    """The text is no expression of this game; the message is the reason code."""


@verifier
def countdown(attempt: Attempt, params: VerifierParams) -> Verdict:
    """Return 1 if the answer is an expression of the given numbers (each at most once) whose exact value is the target.

    Reference: {"numbers": [..], "target": n, "use_all"?: bool}. "expression = target" is accepted. The text is parsed
    here, never evaluated; powers, joined digits and numbers that were not given are refused.
    """
    numbers, target, use_all = _game(attempt.reference)
    text = one_answer(attempt)
    if isinstance(text, Verdict):
        return text
    try:
        value, used = evaluate(text, target)
    except BadExpression as exc:
        return Verdict("graded", 0.0, str(exc), text[:200])
    spare = Counter(numbers)
    spare.subtract(used)
    if min(spare.values(), default=0) < 0:
        extra = sorted(n for n, left in spare.items() if left < 0)
        return Verdict("graded", 0.0, f"number_not_given: {extra[0]}", text)
    if use_all and any(spare.values()):
        return Verdict("graded", 0.0, f"number_not_used: {min(n for n, left in spare.items() if left)}", text)
    if value != target:
        return Verdict("graded", 0.0, f"wrong_value: {value} is not {target}", text)
    return Verdict("graded", 1.0, "equal", text)


def evaluate(text: str, target: int) -> tuple[Fraction, list[int]]:
    """Return the exact value of an expression and its numbers in order. Raises: BadExpression with a reason code."""
    tokens = _tokens(text)
    if tokens[:2] == [target, "="] and tokens.count("=") == 1:
        tokens = tokens[2:]
    if "=" in tokens:
        at = tokens.index("=")
        if tokens[at + 1 :] != [target]:
            raise BadExpression("wrong_value_stated")
        tokens = tokens[:at]
    parser = _Parser(tokens)
    value = parser.sum()
    if parser.at != len(tokens):
        raise BadExpression("not_an_expression")
    if not parser.numbers:
        raise BadExpression("no_numbers")
    return value, parser.numbers


def _tokens(text: str) -> list[int | str]:
    for sign, plain in SIGNS.items():
        text = text.replace(sign, plain)
    tokens: list[int | str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None or len(tokens) >= MAX_TOKENS:
            raise BadExpression("not_an_expression")
        sign = "frac" if token["sign"] and token["sign"].endswith("frac") else token["sign"]
        tokens.append(int(token["number"]) if token["number"] else sign)
        at = token.end()
    return tokens


class _Parser:
    """Recursive descent over at most MAX_TOKENS tokens."""

    def __init__(self, tokens: list[int | str]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0
        self.numbers: list[int] = []

    def peek(self) -> int | str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def sum(self) -> Fraction:
        value = self.product()
        while (sign := self.peek()) in ("+", "-"):
            self.at += 1
            other = self.product()
            value = value + other if sign == "+" else value - other
        return value

    def product(self) -> Fraction:
        value, divided = self.atom(), False
        while (sign := self.peek()) in ("*", "/") or (not divided and self._beside_bracket()):
            self.at += sign in ("*", "/")
            divided |= sign == "/"
            other = self.atom()
            if sign == "/" and other == 0:
                raise BadExpression("division_by_zero")
            value = value / other if sign == "/" else value * other
        return value

    def _beside_bracket(self) -> bool:
        """True for a product without a sign, as in 3(5+7) and (5+7)3; after a division it would be ambiguous."""
        last, following = self.tokens[self.at - 1], self.peek()
        return following == "(" or (last == ")" and isinstance(following, int))

    def atom(self) -> Fraction:
        token = self.peek()
        self.at += 1
        if token == "frac" and self.depth < 50:
            above, below = self.bracketed("{", "}"), self.bracketed("{", "}")
            if below == 0:
                raise BadExpression("division_by_zero")
            return above / below
        if isinstance(token, int):
            self.numbers.append(token)
            return Fraction(token)
        if token == "(" and self.depth < 50:
            self.at -= 1
            return self.bracketed("(", ")")
        raise BadExpression("not_an_expression")

    def bracketed(self, opening: str, closing: str) -> Fraction:
        if self.peek() == opening:
            self.at += 1
            self.depth += 1
            value = self.sum()
            self.depth -= 1
            if self.peek() == closing:
                self.at += 1
                return value
        raise BadExpression("not_an_expression")


def _game(reference: Any) -> tuple[list[int], int, bool]:
    numbers = reference.get("numbers") if isinstance(reference, Mapping) else None
    target = reference.get("target") if isinstance(reference, Mapping) else None
    if (
        not isinstance(numbers, list)
        or not numbers
        or not all(isinstance(n, int) and n >= 0 for n in numbers)
        or not isinstance(target, int)
    ):
        raise DataError(f'reference: expected {{"numbers": [integers], "target": integer}}, got {reference!r:.80}')
    return numbers, target, bool(reference.get("use_all"))
