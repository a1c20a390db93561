"""The typed tree of answers: what every node is, and small questions about trees."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from verifiers.mathematics.words.tables import words_of


class Node(NamedTuple):
    """One node: an operator and its arguments. Equal trees compare equal.

    Numbers: num(value), dec(value, places) a decimal as shown, const(pi | e | i | inf | R | Z | N | Q | empty).
    Names: sym(name), word(text), call(name, *arguments).
    Expressions: add(*), mul(*), div(a, b), neg(a), pow(a, b), root(a, degree), fn(name, a[, base]), fact(a),
    binom(n, k), perm(n, k), abs(a), floor(a), ceil(a), pm(a), mp(a), det(matrix), transpose(a).
    Marks: percent(a), deg(a), money(currency, a).
    Collections: list(*), either(*) and both(*) for items joined by commas, by or, by and; tuple(open, close, *),
    set(*), builder(what, condition), matrix(*rows).
    Statements: rel(e0, sign, e1, ...), union(a, b), inter(a, b), minus(a, b), ratio(*), mod(value, modulus),
    undone(what) an integral, sum or limit that was left standing, dots.
    """

    op: str
    args: tuple[Any, ...] = ()


PI, E, IMAGINARY, INF = (Node("const", (name,)) for name in ("pi", "e", "i", "inf"))
EMPTY, REALS, DOTS = Node("const", ("empty",)), Node("const", ("R",)), Node("dots")
ONE = Node("num", (1,))


def num(value: int | Fraction) -> Node:
    """The exact number `value`; a whole fraction becomes an int, so that equal numbers are equal nodes."""
    return Node("num", (value.numerator if value.denominator == 1 else value,))


def neg(a: Node) -> Node:
    """Minus `a`; the minus is taken into a number."""
    if a.op == "num":
        return Node("num", (-a.args[0],))
    if a.op == "dec":
        return Node("dec", (-a.args[0], a.args[1]))
    return Node("neg", (a,))


def nodes(tree: Node) -> Iterator[Node]:
    """Every node of the tree, root first."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        for a in node.args:
            if isinstance(a, Node):
                stack.append(a)


def has(tree: Node, *ops: str) -> bool:
    """Whether any node of the tree is one of `ops`."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if node.op in ops:
            return True
        for a in node.args:
            if isinstance(a, Node):
                stack.append(a)
    return False


def variables(tree: Node) -> frozenset[str]:
    """Names of the free symbols, words and undefined functions of the tree."""
    return frozenset(n.args[0] for n in nodes(tree) if n.op in {"sym", "word", "call"})


def is_constant(tree: Node) -> bool:
    """Whether the tree is one number: no names, no collections, no statements."""
    return all(n.op in CONSTANT and (n.op != "const" or n.args[0] in {"pi", "e", "i"}) for n in nodes(tree))


CONSTANT = words_of("""
    num dec const add mul div neg pow root fn fact binom perm abs floor ceil det matrix percent deg
""")
EXPRESSION = CONSTANT | {"sym", "word", "call", "pm", "mp", "money", "transpose"}


def substitute(tree: Node, names: dict[str, Node]) -> Node:
    """The tree with symbols replaced."""
    if tree.op == "sym":
        return names.get(tree.args[0], tree)
    if not any(isinstance(a, Node) for a in tree.args):
        return tree
    return Node(tree.op, tuple(substitute(a, names) if isinstance(a, Node) else a for a in tree.args))


def is_vector_sum(tree: Node) -> bool:
    """Whether unit vectors i, j, k stand in it."""
    return any(
        n.op == "sym" and str(n.args[0]).startswith("vec ") and n.args[0][4:] in {"i", "j", "k", "imath", "jmath"}
        for n in nodes(tree)
    )


def expand_signs(tree: Node) -> list[Node]:
    """The two trees that a plus-minus stands for (upper signs, lower signs); the tree alone if it has none."""
    if not has(tree, "pm", "mp"):
        return [tree]
    return [_choose(tree, True), _choose(tree, False)]


def _choose(tree: Node, upper: bool) -> Node:
    if tree.op in {"pm", "mp"}:
        inner = _choose(tree.args[0], upper)
        return inner if (tree.op == "pm") == upper else neg(inner)
    if not any(isinstance(a, Node) for a in tree.args):
        return tree
    return Node(tree.op, tuple(_choose(a, upper) if isinstance(a, Node) else a for a in tree.args))
