"""Equations and inequalities of several names as the curves and regions that they describe."""

from __future__ import annotations

from verizero.verifiers.mathematics.decide.equality import same
from verizero.verifiers.mathematics.decide.regions import FLIPPED
from verizero.verifiers.mathematics.read.syntax_tree import Node, difference, neg, num, substitute, sym, variables

MAX_DENOMINATORS = 4


def same_inequality(gold: Node, answer: Node) -> bool | None:
    """True if two inequalities have the same sign and the same difference of their sides up to a positive factor."""
    wanted, reached = gold.args, answer.args
    if {wanted[1], reached[1]} & {"in", "notin"}:
        return wanted[1] == reached[1] and wanted[0] == reached[0] and same(wanted[2], reached[2])
    if len(variables(gold)) < 2:
        # A bound that is no number, such as x < a: the variable is turned to the left, and the bounds are compared.
        wanted, reached = (t if t[0].op == "sym" else (t[2], FLIPPED.get(t[1], ""), t[0]) for t in (wanted, reached))
        return wanted[:2] == reached[:2] and same(wanted[2], reached[2])
    first, second = difference(wanted[0], wanted[2]), difference(reached[0], reached[2])
    if wanted[1][0] != reached[1][0]:
        if FLIPPED.get(reached[1]) != wanted[1]:
            return False
        second = neg(second)
    elif wanted[1] != reached[1]:
        return False
    return proportional(first, second, positive=True)


def proportional(tree: Node, other: Node, positive: bool) -> bool | None:
    """True if one tree is a constant multiple of the other for all values of the names, by a factor above zero if
    `positive`; neither tree may be zero."""
    names = sorted(variables(tree) | variables(other))
    if not names or variables(tree) != variables(other) or any(same(t, num(0)) is not False for t in (tree, other)):
        return False
    # f is a multiple of g if f(x) g(y) = f(y) g(x) at independent points x and y: no division, hence no poles.
    moved = {n: sym(n + "~") for n in names}
    crossed = same(Node("mul", (tree, substitute(other, moved))), Node("mul", (substitute(tree, moved), other)))
    if not crossed or not positive:
        return crossed
    product = Node("mul", (tree, other))
    return same(Node("abs", (product,)), product)


def numerator(tree: Node) -> Node:
    """Return the sum multiplied by the denominators that have names in them."""
    below = [n.args[1] for a in tree.args for n in _terms(a) if n.op == "div" and variables(n.args[1])]
    distinct: list[Node] = []
    for d in below:
        if not any(d == k or same(d, k) for k in distinct):
            distinct.append(d)
    return tree if not distinct or len(distinct) > MAX_DENOMINATORS else Node("mul", (tree, *distinct))


def _terms(tree: Node) -> list[Node]:
    inner = tree.args[0] if tree.op == "neg" else tree
    return [n for a in inner.args for n in _terms(a)] if inner.op == "add" else [inner]
