"""Equations and inequalities of several names as the curves and regions that they describe."""

from __future__ import annotations

from verifiers.mathematics.decide.equality import same
from verifiers.mathematics.decide.regions import FLIPPED
from verifiers.mathematics.read.syntax_tree import Node, neg, num, substitute, variables


def same_inequality(gold: Node, said: Node) -> bool | None:
    """Inequalities of several names: the same difference up to a positive factor, the same sign."""
    one, two = gold.args, said.args
    if one[1] in {"in", "notin"} or two[1] in {"in", "notin"}:
        return one[1] == two[1] and one[0] == two[0] and same(one[2], two[2])
    if len(variables(gold)) < 2:
        wanted, given = one, two
        if wanted[0].op != "sym":
            wanted = (wanted[2], FLIPPED.get(wanted[1], ""), wanted[0])
        if given[0].op != "sym":
            given = (given[2], FLIPPED.get(given[1], ""), given[0])
        return wanted[:2] == given[:2] and same(wanted[2], given[2])
    first = Node("add", (one[0], neg(one[2])))
    second = Node("add", (two[0], neg(two[2])))
    if one[1][0] != two[1][0]:
        second = neg(second)
        if FLIPPED.get(two[1]) != one[1]:
            return False
    elif one[1] != two[1]:
        return False
    return proportional(first, second, positive=True)


def proportional(one: Node, two: Node, positive: bool) -> bool | None:
    """Whether one is a constant (and positive) multiple of the other, for all values of the names; neither is zero."""
    names = sorted(variables(one) | variables(two))
    if not names or variables(one) != variables(two) or same(two, num(0)) is not False:
        return False
    moved = {n: Node("sym", (n + "~",)) for n in names}
    crossed = same(Node("mul", (one, substitute(two, moved))), Node("mul", (substitute(one, moved), two)))
    if not crossed or not positive:
        return crossed
    return same(Node("abs", (Node("mul", (one, two)),)), Node("mul", (one, two)))


def numerator(tree: Node) -> Node:
    """The sum multiplied by those denominators in which names stand."""
    below = [n.args[1] for a in tree.args for n in _terms(a) if n.op == "div" and variables(n.args[1])]
    distinct: list[Node] = []
    for d in below:
        if not any(d == k or same(d, k) for k in distinct):
            distinct.append(d)
    return tree if not distinct or len(distinct) > 4 else Node("mul", (tree, *distinct))


def _terms(tree: Node) -> list[Node]:
    inner = tree.args[0] if tree.op == "neg" else tree
    return [n for a in inner.args for n in _terms(a)] if inner.op == "add" else [inner]
