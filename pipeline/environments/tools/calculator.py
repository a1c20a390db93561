"""Tools for exact arithmetic: one that reads expressions, or one for each operation.

Expressions are parsed, never run as programs. Numbers are exact fractions with bounded digits, so that no
expression costs much time or memory.
"""

from __future__ import annotations

import re
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from verizero.pipeline.environments.tools.base import Tool, Toolbox, ToolParams, tool
from verizero.pipeline.types import Prompt

MAX_BITS = 4096
"""Largest numerator and denominator: 2**4096, which has 1,234 digits."""
MAX_DEPTH = 40
"""The most brackets, signs and powers inside each other."""
DIGITS = 12
"""Significant digits of a result that is no integer."""
TOKEN = re.compile(r"\s*(\d+\.?\d*|\.\d+|\*\*|//|[-+*/%^()])", re.ASCII)
Number = Annotated[str, WithJsonSchema({"type": "number"})]
"""A number as text: as a float, large integers would lose digits."""
TERMS = {"+", "-"}
FACTORS = {"*", "/", "//", "%"}


class Params(ToolParams):
    """The form of the calculator."""

    form: Literal["expression", "operations"] = Field(
        "expression", description="expression: calc takes 2*(3+4); operations: add, sub, mul and div take two numbers"
    )
    max_characters: int = Field(500, ge=1, le=10_000, description="longer expressions and numbers are refused")


def tools(params: Params, prompt: Prompt) -> Toolbox:
    """Return the calculator, or its four operations."""
    limit = params.max_characters

    @tool
    def calc(expression: str) -> str:
        """Return the value of an expression of numbers with + - * / // % ^ and brackets."""
        return shown(evaluate(expression, limit))

    def operation(name: str, sign: str, description: str) -> Tool:
        def compute(a: Number, b: Number) -> str:
            return shown(_apply(sign, _number(a, limit), _number(b, limit)))

        compute.__doc__ = description
        return Tool(compute, name)

    if params.form == "expression":
        return Toolbox([calc])
    return Toolbox(
        [
            operation("add", "+", "Return a + b."),
            operation("sub", "-", "Return a - b."),
            operation("mul", "*", "Return a * b."),
            operation("div", "/", "Return a / b."),
        ]
    )


def evaluate(expression: str, max_characters: int = 500) -> Fraction:
    """Return the exact value of an arithmetic expression.

    ** and ^ are powers with integer exponents, // and % divide as in Python.
    Raises: ValueError for what is no expression or too large, ZeroDivisionError.
    """
    if len(expression) > max_characters:
        raise ValueError(f"the expression has {len(expression)} characters, at most {max_characters} are read")
    return _Parser(_tokens(expression)).value()


def shown(value: Fraction) -> str:
    """Return the number as text: integers in full, others with 12 significant digits."""
    if value.denominator == 1:
        return str(value.numerator)
    with localcontext() as context:
        context.prec = DIGITS
        quotient = (Decimal(value.numerator) / Decimal(value.denominator)).normalize()
    return f"{quotient:f}" if -DIGITS <= quotient.adjusted() <= DIGITS else f"{quotient:e}"


def _number(text: str, max_characters: int) -> Fraction:
    sign, digits = (-1, text.strip()[1:]) if text.strip().startswith("-") else (1, text.strip())
    if len(digits) > max_characters or not re.fullmatch(r"\d+(\.\d+)?", digits, re.ASCII):
        raise ValueError(f"{text[:40]} is not a number")
    return sign * _bounded(Fraction(digits))


def _tokens(expression: str) -> list[str]:
    tokens, position = [], 0
    text = expression.rstrip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"cannot read {text[position : position + 10].strip()} in the expression")
        tokens.append(match[1])
        position = match.end()
    return tokens


class _Parser:
    """Reads an expression by its grammar: terms, factors, signs, powers and brackets."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.position, self.depth = tokens, 0, 0

    def value(self) -> Fraction:
        result = self.terms()
        if self.position < len(self.tokens):
            raise ValueError(f"{self.tokens[self.position]} is not expected here")
        return result

    def next(self, expected: set[str]) -> str | None:
        if self.position < len(self.tokens) and self.tokens[self.position] in expected:
            self.position += 1
            return self.tokens[self.position - 1]
        return None

    def terms(self) -> Fraction:
        result = self.factors()
        while sign := self.next(TERMS):
            result = _apply(sign, result, self.factors())
        return result

    def factors(self) -> Fraction:
        result = self.signed()
        while sign := self.next(FACTORS):
            result = _apply(sign, result, self.signed())
        return result

    def signed(self) -> Fraction:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} brackets and signs inside each other")
        sign = self.next(TERMS)
        if sign is not None:
            inner = self.signed()
            result = -inner if sign == "-" else inner
        else:
            result = self.power()
        self.depth -= 1
        return result

    def power(self) -> Fraction:
        base = self.single()
        # To the right first: 2^3^2 is 2^9; and -2^2 is -4.
        return _power(base, self.signed()) if self.next({"**", "^"}) else base

    def single(self) -> Fraction:
        if self.next({"("}):
            result = self.terms()
            if not self.next({")"}):
                raise ValueError("a bracket is not closed")
            return result
        if self.position == len(self.tokens):
            raise ValueError("the expression ends too early")
        token = self.tokens[self.position]
        if not token[-1].isdigit() and not token[0].isdigit():
            raise ValueError(f"{token} is not expected here")
        self.position += 1
        return _bounded(Fraction(token))


def _apply(sign: str, a: Fraction, b: Fraction) -> Fraction:
    if sign in ("/", "//", "%") and b == 0:
        raise ZeroDivisionError("division by zero")
    if sign == "+":
        return _bounded(a + b)
    if sign == "-":
        return _bounded(a - b)
    if sign == "*":
        return _bounded(a * b)
    return _bounded(a / b if sign == "/" else Fraction(a // b) if sign == "//" else a % b)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("an exponent must be an integer")
    if base == 0 and exponent < 0:
        raise ZeroDivisionError("division by zero")
    bits = max(abs(base.numerator), base.denominator).bit_length()
    # Refused before it is computed. Powers of 0, 1 and -1 stay small, whatever the exponent.
    if bits > 1 and (bits - 1) * abs(exponent) > MAX_BITS:
        raise ValueError("the power is too large")
    if bits <= 1:
        exponent = exponent % 2 if base < 0 else min(exponent, Fraction(1)) if base == 0 else Fraction(1)
    return _bounded(Fraction(base**exponent.numerator))


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator).bit_length() > MAX_BITS:
        raise ValueError("the number is too large")
    return value
