"""The commands that start a value: fractions, roots, binomials, functions, and what is left unevaluated."""

from __future__ import annotations

from collections.abc import Callable

from verizero.verifiers.mathematics.read.cursor import Cursor
from verizero.verifiers.mathematics.read.expressions import group, power, primary, starts_factor, sum_of, times
from verizero.verifiers.mathematics.read.lexer import Token, Unreadable
from verizero.verifiers.mathematics.read.syntax_tree import IMAGINARY, E, Node, neg, num, sym
from verizero.verifiers.mathematics.words.tables import meanings, words_of
from verizero.verifiers.mathematics.words.vocabulary import CONSTANTS, HYPERBOLIC, INVERSE, NAMED, TRIGONOMETRIC, UNDONE

ALIASES = INVERSE | meanings("""
    tan   tg
    cot   ctg
    csc   cosec
    asinh arcsinh arsinh
    acosh arccosh arcosh
    atanh arctanh artanh
""")
OPENING, CLOSING = words_of("( [ { set{"), words_of(") ] } set}")
UNDONE_ENDS = words_of("= , ; ≈ < >")


def _pair(op: str) -> Callable[[Cursor], Node]:
    """Return a reader of a command with two arguments, which makes the node `op`."""
    return lambda cursor: Node(op, (group(cursor), group(cursor)))


def _root(cursor: Cursor) -> Node:
    degree = num(2)
    if cursor.take_op("["):
        degree = sum_of(cursor)
        cursor.expect("]")
    return Node("root", (group(cursor), degree))


def _undone(cursor: Cursor) -> Node:
    """Read an integral, sum, product or limit with all that belongs to it, as written: it is not evaluated."""
    parts: list[str] = []
    depth = 0
    while cursor.peek().kind != "end":
        value = cursor.peek().value
        closes = value in CLOSING
        if depth == 0 and (closes or value in UNDONE_ENDS):
            break
        depth += (value in OPENING) - closes
        parts.append(str(cursor.take().value))
    return Node("undone", (" ".join(parts),))


def _function(cursor: Cursor, name: str) -> Node:
    """Read the base, exponent and argument of the function `name`."""
    base = exponent = None
    for _ in range(2):
        if cursor.take_op("_"):
            base = group(cursor)
        elif cursor.take_op("^"):
            exponent = neg(group(cursor)) if cursor.take_op("-") else group(cursor)
    kind = ALIASES.get(name, name)
    # sin^{-1} is the inverse function, while sin^2 is a power of the value.
    if exponent == num(-1) and (kind in TRIGONOMETRIC or kind in HYPERBOLIC):
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
    """Read an argument without brackets: sin 2x cos x is sin(2x) cos(x), and sin x (y + 1) is sin(x) (y + 1)."""
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


def command(cursor: Cursor) -> Node:
    """Read the value that a command starts.

    Raises: Unreadable if the command starts no value.
    """
    name = str(cursor.peek().value)
    if name in UNDONE:
        return _undone(cursor)
    cursor.at += 1
    if name in CONSTANTS:
        return Node("const", (CONSTANTS[name],))
    if name.startswith("mathbb"):
        return Node("const", (name[6:7],)) if name[6:] in {"R", "Z", "N", "Q", "C"} else sym(name)
    # "5 sec" and "10 min 30" are times, "min = 3" is a name, and the rest are functions.
    if name in {"sec", "min"} and cursor.peek().kind in {"end", "num"} and cursor.at > 1:
        return Node("word", (name,))
    if name in {"min", "max"} and cursor.is_op("="):
        return Node("word", (name,))
    if name in NAMED:
        return _function(cursor, name)
    if name not in STRUCTURES:
        raise Unreadable(f"\\{name} starts no value")
    return STRUCTURES[name](cursor)


STRUCTURES: dict[str, Callable[[Cursor], Node]] = {
    **dict.fromkeys(words_of("frac dfrac tfrac cfrac nicefrac sfrac"), _pair("div")),
    **dict.fromkeys(words_of("binom dbinom tbinom"), _pair("binom")),
    "sqrt": _root,
    "cbrt": lambda cursor: Node("root", (group(cursor), num(3))),
    "fourthroot": lambda cursor: Node("root", (group(cursor), num(4))),
    "det": lambda cursor: Node("det", (group(cursor),)),
}
