"""Tools for exact arithmetic: one that reads expressions, or one for each operation.

Expressions are parsed, never run as programs. Numbers are exact fractions with bounded digits, so that no
expression costs much time or memory.
"""

from __future__ import annotations

import ast
import re
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from verizero.pipeline.environments.tools.base import Tool, Toolbox, ToolParams, tool
from verizero.pipeline.types import Prompt

MAX_BITS = 4096
"""Largest numerator and denominator: 2**4096, which has 1,234 digits."""
MAX_DEPTH = 40
"""The most brackets, signs and powers inside each other."""
MAX_CHARACTERS = 500
"""Characters of an expression or a number. Python's parser reads sums of so many terms; it gives up on long ones."""
DIGITS = 12
"""Significant digits of a result that is no integer."""
TOO_DEEP = f"more than {MAX_DEPTH} brackets and signs inside each other"
UNREADABLE = "the expression cannot be read: write numbers with + - * / // % ^ between them, and close every bracket"
NUMBER = re.compile(r"\d+\.?\d*|\.\d+", re.ASCII)
ODD = re.compile(r"[^\s\d.()+*/%^-]", re.ASCII)
"""A letter that no expression has."""
SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip
Number = Annotated[str, WithJsonSchema({"type": "number"})]
"""A number as text: as a float, large integers would lose digits."""


class Params(ToolParams):
    """The form of the calculator."""

    form: Literal["expression", "operations"] = Field(
        "expression", description="expression: calc takes 2*(3+4); operations: add, sub, mul and div take two numbers"
    )


def tools(params: Params, prompt: Prompt) -> Toolbox:
    """Return the calculator, or its four operations."""

    @tool
    def calc(expression: str) -> str:
        """Return the value of an expression of numbers with + - * / // % ^ and brackets."""
        return shown(evaluate(expression))

    def operation(name: str, sign: str, description: str) -> Tool:
        def compute(a: Number, b: Number) -> str:
            return shown(_apply(sign, _number(a), _number(b)))

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


def evaluate(expression: str) -> Fraction:
    """Return the exact value of an arithmetic expression.

    ** and ^ are powers with integer exponents, // and % divide as in Python.
    Raises: ValueError for what is no expression or too large, ZeroDivisionError.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"the expression has {len(expression)} characters, at most {MAX_CHARACTERS} are read")
    if odd := ODD.search(expression):
        raise ValueError(f"cannot read {expression[odd.start() : odd.start() + 10].strip()} in the expression")
    nested = accumulate((c == "(") - (c == ")") for c in expression)
    if max(nested, default=0) > MAX_DEPTH:
        raise ValueError(TOO_DEEP)
    numbers: list[Fraction] = []

    def named(match: re.Match[str]) -> str:
        numbers.append(Fraction(match[0]))
        return f" n{len(numbers) - 1} "  # Python's own numbers are floats

    try:
        tree = ast.parse(NUMBER.sub(named, " ".join(expression.split())).strip().replace("^", "**"), mode="eval")
    except SyntaxError as exc:  # its own words differ from one version of Python to the next
        raise ValueError(UNREADABLE) from exc
    except (
        MemoryError,
        RecursionError,
    ) as exc:  # of the parser, for many signs and powers
        raise ValueError(TOO_DEEP) from exc
    return _value(tree.body, numbers)


def shown(value: Fraction) -> str:
    """Return the number as text: integers in full, others with 12 significant digits."""
    if value.denominator == 1:
        return str(value.numerator)
    with localcontext() as context:
        context.prec = DIGITS
        quotient = (Decimal(value.numerator) / Decimal(value.denominator)).normalize()
    return f"{quotient:f}" if -DIGITS <= quotient.adjusted() <= DIGITS else f"{quotient:e}"


def _number(text: str) -> Fraction:
    sign, digits = (-1, text.strip()[1:]) if text.strip().startswith("-") else (1, text.strip())
    if len(digits) > MAX_CHARACTERS or not re.fullmatch(r"\d+(\.\d+)?", digits, re.ASCII):
        raise ValueError(f"{text[:40]} is not a number")
    return sign * _bounded(Fraction(digits))


def _value(node: ast.expr, numbers: list[Fraction], depth: int = 0) -> Fraction:
    if depth > MAX_DEPTH:
        raise ValueError(TOO_DEEP)
    if isinstance(node, ast.Name):
        return _bounded(numbers[int(node.id[1:])])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        inner = _value(node.operand, numbers, depth + 1)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _power(_value(node.left, numbers, depth), _value(node.right, numbers, depth + 1))
    chain = []  # a sum of many terms leans to the left: it is no recursion
    while isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        chain.append(node)
        node = node.left
    if not chain:
        raise ValueError(UNREADABLE)  # as 2(3) and (), which Python reads as a call and a tuple
    result = _value(node, numbers, depth)
    for step in reversed(chain):
        result = _apply(SIGNS[type(step.op)], result, _value(step.right, numbers, depth))
    return result


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
