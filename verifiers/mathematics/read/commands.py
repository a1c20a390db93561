"""Commands that start a value: fractions, roots, binomials, functions, what is left unevaluated."""

from __future__ import annotations

from collections.abc import Callable

from verifiers.mathematics.read.cursor import Cursor
from verifiers.mathematics.read.expressions import group, power, primary, starts_factor, sum_of, times
from verifiers.mathematics.read.lexer import Token, Unreadable
from verifiers.mathematics.read.syntax_tree import IMAGINARY, E, Node, neg, num
from verifiers.mathematics.words.vocabulary import CONSTANTS, HYPERBOLIC, INVERSE, NAMED, UNDONE

ALIASES = {"tg": "tan", "ctg": "cot", "cosec": "csc", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh"}
ALIASES |= {"arsinh": "asinh", "arcosh": "acosh", "artanh": "atanh"} | INVERSE


def _fraction(cursor: Cursor) -> Node:
    above = group(cursor)
    return Node("div", (above, group(cursor)))


def _root(cursor: Cursor) -> Node:
    degree = num(2)
    if cursor.take_op("["):
        degree = sum_of(cursor)
        cursor.expect("]")
    return Node("root", (group(cursor), degree))


def _binomial(cursor: Cursor) -> Node:
    above = group(cursor)
    return Node("binom", (above, group(cursor)))


def _undone(cursor: Cursor) -> Node:
    """An integral, sum, product or limit with all that belongs to it, as written: it is not evaluated."""
    said: list[str] = []
    depth = 0
    while cursor.peek().kind != "end":
        token = cursor.peek()
        opens = token.value in {"(", "[", "{", "set{"}
        closes = token.value in {")", "]", "}", "set}"}
        if depth == 0 and (closes or token.value in {"=", ",", ";", "≈", "<", ">"}):
            break
        depth += opens - closes
        said.append(str(token.value))
        cursor.at += 1
    return Node("undone", (" ".join(said),))


def _function(cursor: Cursor, name: str) -> Node:
    base = exponent = None
    for _ in range(2):
        if cursor.take_op("_"):
            base = group(cursor)
        elif cursor.take_op("^"):
            exponent = neg(group(cursor)) if cursor.take_op("-") else group(cursor)
    kind = ALIASES.get(name, name)
    if exponent == num(-1) and (kind in {"sin", "cos", "tan", "cot", "sec", "csc"} or kind in HYPERBOLIC):
        kind, exponent = f"a{kind}", None
    if kind in {"max", "min", "gcd", "lcm"}:
        inner = primary(cursor)
        items = inner.args[2:] if inner.op == "tuple" else inner.args if inner.op == "set" else (inner,)
        return Node("fn", (kind, *items))
    value = _applied(kind, _function_argument(cursor), base)
    return value if exponent is None else Node("pow", (value, exponent))


def _applied(kind: str, argument: Node, base: Node | None) -> Node:
    if kind == "exp":
        return Node("pow", (E, argument))
    if kind == "cis":
        return Node("add", (Node("fn", ("cos", argument)), Node("mul", (IMAGINARY, Node("fn", ("sin", argument))))))
    if kind in {"log", "lg"}:
        return Node("fn", ("log", argument, base if base is not None else num(10)))
    return Node("fn", (kind, argument))


def _function_argument(cursor: Cursor) -> Node:
    if cursor.is_op("(", "[", "{", "|", "lvert"):
        return primary(cursor)
    sign = cursor.take_op("-", "+")
    argument = power(cursor)
    while starts_factor(cursor) and not cursor.is_op("(", "[") and not _is_function(cursor.peek()):
        if cursor.peek().kind == "word":
            break
        argument = times(argument, power(cursor))
    return neg(argument) if sign == "-" else argument


def _is_function(token: Token) -> bool:
    return token.kind == "cmd" and (token.value in NAMED or token.value in UNDONE)


def command(cursor: Cursor) -> Node | None:
    """The value that a command starts, None if it starts none."""
    name = str(cursor.peek().value)
    if name in UNDONE:
        return _undone(cursor)
    cursor.at += 1
    if name in CONSTANTS:
        return Node("const", (CONSTANTS[name],))
    if name.startswith("mathbb"):
        return Node("const", (name[6:7],)) if name[6:] in {"R", "Z", "N", "Q", "C"} else Node("sym", (name,))
    if name in {"sec", "min"} and cursor.peek().kind in {"end", "num"} and cursor.at > 1:
        return Node("word", (name,))
    if name in {"min", "max"} and cursor.is_op("="):
        return Node("word", (name,))
    if name in NAMED:
        return _function(cursor, name)
    reader = STRUCTURES.get(name)
    if reader is None:
        raise Unreadable(f"\\{name} starts no value")
    return reader(cursor)


STRUCTURES: dict[str, Callable[[Cursor], Node]] = {
    "nicefrac": _fraction, "sfrac": _fraction,
    "frac": _fraction, "dfrac": _fraction, "tfrac": _fraction, "cfrac": _fraction, "sqrt": _root,
    "cbrt": lambda c: Node("root", (group(c), num(3))), "fourthroot": lambda c: Node("root", (group(c), num(4))),
    "binom": _binomial, "dbinom": _binomial, "tbinom": _binomial, "det": lambda c: Node("det", (group(c),)),
}  # fmt: skip  # fmt: skip
