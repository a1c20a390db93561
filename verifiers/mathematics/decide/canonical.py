"""Answers brought to one shape before they are compared: named points, chains of names, letters in the gold's case."""

from __future__ import annotations

from typing import Any

from verifiers.mathematics.decide.formulas import INTEGRATION_CONSTANTS
from verifiers.mathematics.decide.regions import COLLECTIONS
from verifiers.mathematics.read.syntax_tree import DOTS, PI, Node, has, nodes, num, substitute, variables

MAX_ITEMS = 1_000
WHOLE_NAMES = frozenset("nkmlj")
"""Names for any whole number in a family of angles: n pi is k pi."""


def in_the_case_of(gold: Node, said: Node) -> Node:
    """`said` with its only variable, one Latin letter, in the case of the gold's only variable."""
    names, given = variables(gold), variables(said)
    if len(names) == len(given) == 1 and names != given:
        (name,), (other,) = names, given
        if {name, other} <= WHOLE_NAMES and PI in nodes(gold):
            return substitute(said, {other: Node("sym", (name,))})
        if len(name) == len(other) == 1 and name.isascii() and name.lower() == other.lower():
            return substitute(said, {other: Node("sym", (name,))})
    return said


def letters_for_unit(gold: Node, said: Node) -> Node | None:
    """`gold` with m and V for the millivolts of mV^2/2, where `said` has these names, and no unit; None if not so."""
    words = {n.args[0] for n in nodes(gold) if n.op == "word"}
    if not words or has(said, "word") or not all(w.isalpha() and set(w) <= variables(said) for w in words):
        return None
    if not has(gold, "sym") and not any(n.op == "pow" and n.args[0].op == "word" for n in nodes(gold)):
        return None
    return _spelled(gold)


def _spelled(tree: Node) -> Node:
    if tree.op == "word":
        return Node("mul", tuple(Node("sym", (c,)) for c in tree.args[0]))
    if tree.op == "pow" and tree.args[0].op == "word":
        *before, last = tree.args[0].args[0]
        return Node("mul", (*(Node("sym", (c,)) for c in before), Node("pow", (Node("sym", (last,)), tree.args[1]))))
    return Node(tree.op, tuple(_spelled(a) if isinstance(a, Node) else a for a in tree.args))


def bare_point(tree: Node) -> Node:
    """(2, 3) of the point A(2, 3)."""
    if tree.op != "mul" or len(tree.args) != 2 or tree.args[1].op != "tuple" or tree.args[0].op != "sym":
        return tree
    return tree.args[1] if len(tree.args[0].args[0]) == 1 and tree.args[0].args[0].isupper() else tree


def spread(tree: Node) -> Node:
    """x = 1, y = 1 for x = y = 1."""
    if tree.op != "rel" or len(tree.args) < 5 or set(tree.args[1::2]) != {"="}:
        return tree
    *names, value = tree.args[::2]
    if any(n.op != "sym" for n in names) or value.op == "sym":
        return tree
    return Node("list", tuple(Node("rel", (n, "=", value)) for n in names))


def with_all_items(tree: Node) -> Node:
    """1, 2, 3, 4, 5 of 1, 2, ..., 5: whole numbers, at least two before the dots, whose step leads to those behind."""
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
    """The tree without items such as `k in Z` that only say what a name in another item stands for."""
    if tree.op not in COLLECTIONS:
        return tree
    kept = [a for a in tree.args if not _is_quantifier(a)]
    if not kept or len(kept) == len(tree.args):
        return tree
    return kept[0] if len(kept) == 1 else Node(tree.op, tuple(kept))


def _is_quantifier(tree: Node) -> bool:
    return (
        tree.op == "rel"
        and tree.args[1] == "in"
        and tree.args[2].op == "const"
        and (
            tree.args[2].args[0] in {"Z", "N"}
            or (tree.args[0].op == "sym" and tree.args[0].args[0] in INTEGRATION_CONSTANTS)
        )
    )


def is_scaled(tree: Node) -> bool:
    """Whether the tree is a number times a vector or matrix."""
    return tree.op in {"mul", "neg", "div"} and any(a.op in {"tuple", "matrix"} for a in tree.args)
