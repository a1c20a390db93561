"""The syntax tree of an answer: its nodes, and small questions about trees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import product, repeat
from typing import Any, NamedTuple

from verizero.verifiers.mathematics.words.vocabulary import words_of


class Node(NamedTuple):
    """A node: an operator and its arguments. Equal trees compare equal.

    Numbers: num(value), dec(value, places) a decimal as shown, const(pi | e | i | inf | R | Z | N | Q | empty).
    Names: sym(name), word(text), call(name, *arguments) an unknown function's value.
    Expressions: add(*), mul(*), div(a, b), neg(a), pow(a, b), root(a, degree), fn(name, a[, base]), fact(a),
    binom(n, k), perm(n, k), abs(a), floor(a), ceil(a), pm(a), mp(a), det(matrix), transpose(a),
    cross(a, b) of vectors.
    Marks: percent(a), deg(a), money(currency, a).
    Collections: list(*), either(*) and both(*) for items joined by commas, by or, by and; tuple(open, close, *),
    set(*), builder(what, condition), matrix(*rows).
    Statements: rel(e0, sign, e1, ...), union(a, b), inter(a, b), minus(a, b), ratio(*), mod(value, modulus),
    piecewise(*branches) of branch(value, condition), undone(what) an integral, sum or limit not evaluated, dots.
    """

    op: str
    args: tuple[Any, ...] = ()


PI, E, IMAGINARY, INF = (Node("const", (name,)) for name in ("pi", "e", "i", "inf"))
EMPTY, REALS, DOTS = Node("const", ("empty",)), Node("const", ("R",)), Node("dots")
ONE = Node("num", (1,))
COLLECTIONS = words_of("list either both")
PROPOSITIONAL = words_of("sym call either both")
"""Operators of statements that are only named: not p, q or r."""
SIGNS = ("pm", "mp")
NAMING = ("sym", "word", "call")
MAX_FREE_SIGNS = 5
"""Signs that are read apart; 2^5 values are as many as anybody means."""
CONSTANT = words_of("""
    num dec const add mul div neg pow root fn fact binom perm abs floor ceil det matrix percent deg
""")
"""Operators of which a number can be made."""
EXPRESSION = CONSTANT | words_of("sym word call pm mp money transpose")


def num(value: int | Fraction) -> Node:
    """Return the exact number `value`; a whole fraction becomes an int, so that equal numbers are equal nodes."""
    return Node("num", (value.numerator if value.denominator == 1 else value,))


def sym(name: str) -> Node:
    """Return the symbol `name`."""
    return Node("sym", (name,))


def neg(a: Node) -> Node:
    """Return minus `a`; a number takes the sign in."""
    if a.op == "num":
        return Node("num", (-a.args[0],))
    if a.op == "dec":
        return Node("dec", (-a.args[0], a.args[1]))
    return Node("neg", (a,))


def difference(a: Node, b: Node) -> Node:
    """Return a - b."""
    return Node("add", (a, neg(b)))


def collected(op: str, items: Iterable[Any]) -> Node:
    """Return the node `op` of the items; a single item is returned as it is."""
    items = tuple(items)
    return items[0] if len(items) == 1 else Node(op, items)


def children(tree: Node) -> list[Node]:
    """Return the arguments that are nodes; the others are names, numbers, signs and brackets."""
    return [a for a in tree.args if isinstance(a, Node)]


def nodes(tree: Node) -> list[Node]:
    """Return every node of the tree, root first."""
    reached = [tree]
    for _, args in reached:  # which grows meanwhile
        for a in args:
            if type(a) is Node:
                reached.append(a)
    return reached


def has(tree: Node, *ops: str) -> bool:
    """True if the operator of any node is one of `ops`."""
    reached = [tree]
    for op, args in reached:
        if op in ops:
            return True
        for a in args:
            if type(a) is Node:
                reached.append(a)
    return False


def has_word(tree: Node, words: frozenset[str]) -> bool:
    """True if a text in the tree has one of the words, in any case."""
    return any(n.op == "word" and words.intersection(n.args[0].lower().split()) for n in nodes(tree))


def variables(tree: Node) -> frozenset[str]:
    """Return the names of the free symbols, words and undefined functions of the tree."""
    return frozenset([args[0] for op, args in nodes(tree) if op in NAMING])


def is_constant(tree: Node) -> bool:
    """True if the tree is a single number: no names, no collections, no statements."""
    for op, args in nodes(tree):
        if op not in CONSTANT or (op == "const" and args[0] not in {"pi", "e", "i"}):
            return False
    return True


def with_children(tree: Node, change: Callable[[Node], Node]) -> Node:
    """Return the tree with every child replaced by `change(child)`."""
    return Node(tree.op, tuple(change(a) if isinstance(a, Node) else a for a in tree.args))


def substitute(tree: Node, names: dict[str, Node]) -> Node:
    """Return the tree with symbols replaced."""
    if tree.op == "sym":
        return names.get(tree.args[0], tree)
    return with_children(tree, lambda a: substitute(a, names))


def is_vector_sum(tree: Node) -> bool:
    """True if unit vectors i, j, k occur in the tree."""
    return any(n.op == "sym" and str(n.args[0]).startswith("vec ") and n.args[0][4:] in AXES for n in nodes(tree))


AXES = words_of("i j k imath jmath")
"""Unit vectors, behind the mark of a vector."""


def has_vectors(tree: Node) -> bool:
    """True if a name in the tree has an arrow or is bold."""
    return any(n.op == "sym" and n.args[0].startswith(("vec ", "bold ", "nabla")) for n in nodes(tree))


def in_one_font(gold: Node, answer: Node) -> tuple[Node, Node]:
    """Return both trees with bold letters as vectors if both sides have such names, and as plain letters if not."""
    mark = "vec " if has_vectors(gold) and has_vectors(answer) else ""
    constants = {n for t in (gold, answer) for n in nodes(t) if n.op == "const"}
    constants |= {REALS} if INF in constants else set()  # all reals may be an interval on the other side

    def changed(tree: Node) -> Node:
        if tree.op == "sym" and tree.args[0].startswith("bold "):
            constant = Node("const", (tree.args[0][5:],))  # bold R for the set of all reals
            return constant if constant in constants else sym(mark + tree.args[0][5:])
        return with_children(tree, changed)

    return changed(gold), changed(answer)


def expand_signs(tree: Node) -> list[Node]:
    """Return the trees that a plus-minus stands for: two for each sign; a tree without plus-minus alone.

    Signs belong together where a minus-plus says so, and in the sides of an equation or the coordinates of a point: of
    ±a ∓ b the values are a - b and -a + b, of ±a ± b all four.
    """
    signs = [n.op for n in nodes(tree) if n.op in SIGNS]
    if not signs:
        return [tree]
    if "mp" in signs or len(signs) > MAX_FREE_SIGNS or any(_ties_signs(n) for n in nodes(tree)):
        return [_with_signs(tree, repeat(upper)) for upper in (True, False)]
    return [_with_signs(tree, iter(uppers)) for uppers in product((True, False), repeat=len(signs))]


def _ties_signs(tree: Node) -> bool:
    return tree.op in {"rel", "tuple", "matrix"} and sum(has(a, *SIGNS) for a in children(tree)) > 1


def _with_signs(tree: Node, uppers: Iterator[bool]) -> Node:
    if tree.op in SIGNS:
        upper = next(uppers)
        inner = _with_signs(tree.args[0], uppers)
        return inner if (tree.op == "pm") == upper else neg(inner)
    return with_children(tree, lambda a: _with_signs(a, uppers))
