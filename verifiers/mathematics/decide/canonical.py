"""Bring answers to a canonical form before they are compared: bare points, lists without dots, letters."""

from __future__ import annotations

from typing import Any

from verizero.verifiers.mathematics.decide.formulas import INTEGRATION_CONSTANTS, spelled
from verizero.verifiers.mathematics.read.syntax_tree import (
    COLLECTIONS,
    DOTS,
    PI,
    Node,
    collected,
    has,
    nodes,
    num,
    substitute,
    sym,
    variables,
    with_children,
)

MAX_ITEMS = 1_000
WHOLE_NAMES = frozenset("nkmlj")
"""Names for any whole number in a family of angles: n pi is k pi."""


def in_the_case_of(gold: Node, answer: Node) -> Node:
    """Return `answer` with its only variable, a Latin letter, in the case of the gold's only variable."""
    names, others = variables(gold), variables(answer)
    if len(names) == len(others) == 1 and names != others:
        (name,), (other,) = names, others
        is_whole = {name, other} <= WHOLE_NAMES and PI in nodes(gold)
        if is_whole or (len(name) == len(other) == 1 and name.isascii() and name.lower() == other.lower()):
            return substitute(answer, {other: sym(name)})
    return answer


def with_products(answer: Node, gold: Node) -> Node:
    """Return `answer` with x times y for x(y) if x is a number in the gold: only the gold tells what is a function."""
    functions = {n.args[0] for n in nodes(gold) if n.op == "call"}
    numbers = {n.args[0] for n in nodes(gold) if n.op == "sym"} - functions

    def product(tree: Node) -> Node:
        if tree.op == "rel":  # y(x) = 2x gives a function a value
            return Node("rel", (tree.args[0], *(product(a) if isinstance(a, Node) else a for a in tree.args[1:])))
        tree = with_children(tree, product)
        is_product = tree.op == "call" and len(tree.args) == 2 and tree.args[0] in numbers
        return Node("mul", (sym(tree.args[0]), tree.args[1])) if is_product else tree

    return product(answer)


def letters_for_unit(gold: Node, answer: Node) -> Node | None:
    """Return `gold` with m and V for the millivolts of mV^2/2 if `answer` has these names and no unit; else None."""
    words = {n.args[0] for n in nodes(gold) if n.op == "word"}
    if not words or has(answer, "word") or not all(w.isalpha() and set(w) <= variables(answer) for w in words):
        return None
    if not has(gold, "sym") and not any(n.op == "pow" and n.args[0].op == "word" for n in nodes(gold)):
        return None  # a number with a unit, not a formula
    return spelled(gold, words)


def bare_point(tree: Node) -> Node:
    """Return (2, 3) for the point A(2, 3), any other tree as it is."""
    if tree.op != "mul" or len(tree.args) != 2 or tree.args[1].op != "tuple" or tree.args[0].op != "sym":
        return tree
    return tree.args[1] if len(tree.args[0].args[0]) == 1 and tree.args[0].args[0].isupper() else tree


def spread(tree: Node) -> Node:
    """Return x = 1, y = 1 for x = y = 1, any other tree as it is."""
    if tree.op != "rel" or len(tree.args) < 5 or set(tree.args[1::2]) != {"="}:
        return tree
    *names, value = tree.args[::2]
    if any(n.op != "sym" for n in names) or value.op == "sym":
        return tree
    return Node("list", tuple(Node("rel", (n, "=", value)) for n in names))


def with_all_items(tree: Node) -> Node:
    """Return 1, 2, 3, 4, 5 for 1, 2, ..., 5, any other tree as it is.

    The items must be whole numbers, at least two before the dots, whose step leads to the items behind the dots.
    """
    if DOTS not in tree.args or tree.op not in {"set", *COLLECTIONS}:
        return tree
    at = tree.args.index(DOTS)
    before, after = _whole(tree.args[:at]), _whole(tree.args[at + 1 :])
    if len(before) < 2 or not after or len(before) + len(after) + 1 != len(tree.args):
        return tree
    first, step = before[0], before[1] - before[0]
    count = (after[-1] - first) // step + 1 if step else 0
    if not len(before) + len(after) <= count <= MAX_ITEMS:
        return tree
    items = [first + step * i for i in range(count)]
    shown = items[:at] == before and items[count - len(after) :] == after
    return Node(tree.op, tuple(num(i) for i in items)) if shown else tree


def _whole(items: tuple[Any, ...]) -> list[int]:
    return [a.args[0] for a in items if isinstance(a, Node) and a.op == "num" and isinstance(a.args[0], int)]


def without_quantifiers(tree: Node) -> Node:
    """Return the tree without items such as `k in Z`, which only define a name in another item."""
    if tree.op not in COLLECTIONS:
        return tree
    kept = [a for a in tree.args if not _is_quantifier(a)]
    return collected(tree.op, kept) if kept and len(kept) < len(tree.args) else tree


def _is_quantifier(tree: Node) -> bool:
    if tree.op != "rel" or tree.args[1] != "in" or tree.args[2].op != "const":
        return False
    name, numbers = tree.args[0], tree.args[2].args[0]
    return numbers in {"Z", "N"} or (name.op == "sym" and name.args[0] in INTEGRATION_CONSTANTS)


def is_scaled(tree: Node) -> bool:
    """True if the tree is a number times a vector or matrix."""
    return tree.op in {"mul", "neg", "div"} and any(a.op in {"tuple", "matrix"} for a in tree.args)
