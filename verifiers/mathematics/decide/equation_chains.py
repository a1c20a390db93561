"""Chains of equals signs: what they end in, what name they give it, and whether their members contradict each other."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from verifiers.mathematics.decide.equality import same
from verifiers.mathematics.decide.quantities import MARKS, explicitly_rounded, quantity
from verifiers.mathematics.read.syntax_tree import Node, has, is_constant, is_vector_sum, nodes, num, variables

INVERSES = frozenset({"f^-1", "g^-1", "h^-1"})
DENYING = frozenset({"not", "never", "neither", "maybe", "perhaps", "possibly", "unless", "if", "wrong", "incorrect"})


class Value(NamedTuple):
    """What a chain of equals signs ends in: the value, the name it was given, whether it is only approximate."""

    tree: Node
    name: str | None = None
    approximate: bool = False


class Contradiction(Exception):
    """Members of one chain of equals signs differ: x = 42 = 43."""


def value_of(tree: Node) -> Value | None:
    """What an expression or a chain of equals signs ends in; None for another statement or an unsolved equation.

    Raises: Contradiction if constant members differ.
    """
    if tree.op != "rel":
        return Value(tree)
    if set(tree.args[1::2]) - {"=", "≈"}:
        return None
    members, signs = list(tree.args[::2]), list(tree.args[1::2])
    if any(n.op == "word" and DENYING.intersection(n.args[0].lower().split()) for n in nodes(members[0])):
        return None
    if len(members) == 2 and is_constant(members[0]) and members[1].op == "sym":
        members.reverse()
    name = name_of(members[0])
    if name is not None:
        members, signs = members[1:], signs[1:] if len(members) > 2 else []
    exact = 1 if tree.args[1] != "≈" or name is None else 0
    while exact and exact < len(members) and signs[exact - 1] == "=":
        exact += 1
    value = members[max(exact, 1) - 1]
    if name is None and len(members) > 1 and not _is_plain_left(members[0], value):
        return None
    named = tree.args[0]
    if named.op == value.op == "tuple" and len(named.args) != len(value.args):
        return None
    before = members[: max(exact, 1)]
    if any(is_constant(one) and _is_formula(two) for one, two in pairwise(before)):
        return None
    for one, two in pairwise([m for m in before if not _is_formula(m)]):
        if _differ(one, two):
            raise Contradiction
    for rounded in members[max(exact, 1) :] if exact else []:
        if is_constant(value) and is_constant(rounded) and not _near(value, rounded):
            raise Contradiction
    return Value(value, name, not exact)


def _is_formula(tree: Node) -> bool:
    """Whether names stand in it, other than units and what is counted."""
    return has(tree, "sym", "call")


def _differ(one: Node, two: Node) -> bool:
    """Whether two values without free names are surely not the same: numbers, quantities, points and sets of them."""
    if one.op == two.op and one.op in {"tuple", "matrix", "set"}:
        items = [[a for a in t.args if isinstance(a, Node)] for t in (one, two)]
        if len(items[0]) != len(items[1]):
            return True
        if one.op == "set":
            return not all(any(not _differ(a, b) for b in items[1]) for a in items[0])
        return any(_differ(a, b) for a, b in zip(*items, strict=True))
    if is_constant(one) and is_constant(two):
        return same(one, two) is False
    if not has(one, *MARKS) and not has(two, *MARKS):
        return False
    left, right = quantity(one), quantity(two)
    if left is None or right is None:
        return False
    return same(left.raw, right.raw) is False and same(left.value, right.value) is False


def _near(value: Node, rounded: Node) -> bool:
    return explicitly_rounded(rounded, value) or same(value, rounded) is True


def _is_plain_left(left: Node, value: Node) -> bool:
    """Whether what stands before the equals sign may just be what was asked for: a + b = 42, not y - 2x = 42."""
    names = variables(left)
    if not names or (not _is_formula(left) and quantity(left) is not None):
        return True
    if is_vector_sum(value):
        return not is_vector_sum(left) and not has(left, "word", "num", "dec")
    if not is_constant(value):
        return names == variables(value) and same(left, value) is True
    return len(names) > 1 and not has(left, "word", "num", "dec")


def name_of(tree: Node) -> str | None:
    """What a left-hand side names, if it is only a name: x, f(x), (x, y), words."""
    if tree.op in {"sym", "word", "call"}:
        return str(tree.args[0])
    if tree.op == "div" and (slope := _slope(tree)) is not None:
        return slope
    if tree.op == "mul" and len(tree.args) == 2 and tree.args[0].op == "pow" and tree.args[1].op == "sym":
        inverse = _marked(tree.args[0])
        return inverse if inverse in INVERSES else None
    if tree.op == "pow":
        return name if (name := _marked(tree)) is not None and name[0].isupper() else None
    if (
        tree.op == "abs"
        and tree.args[0].op in {"sym", "mul"}
        and all(n.op in {"sym", "mul"} for n in nodes(tree.args[0]))
    ):
        return "|" + "".join(sorted(variables(tree))) + "|"
    if tree.op == "tuple" and all(a.op == "sym" for a in tree.args[2:]):
        return "(" + ",".join(a.args[0] for a in tree.args[2:]) + ")"
    if tree.op == "mul" and all(
        n.op in {"sym", "word", "mul", "call", "tuple"} or isinstance(n, str) for n in nodes(tree)
    ):
        letters = [a.args[0] for a in tree.args if a.op == "sym"]
        if len(letters) == len(tree.args) and "angle" in letters:
            return "angle"
        return "".join(letters) if len(letters) == len(tree.args) and "".join(letters).isupper() else _called(tree)
    return None


def _marked(tree: Node) -> str | None:
    """The name of an inverse or a transpose, A^{-1} or A^T; None for another power."""
    base, mark = tree.args
    return f"{base.args[0]}^{mark.args[0]}" if base.op == "sym" and mark in (num(-1), Node("sym", ("T",))) else None


def _slope(tree: Node) -> str | None:
    """The name y' of dy/dx, None if the quotient is no derivative."""
    above, below = ("".join(a.args[0] for a in n.args if a.op == "sym") if n.op == "mul" else "" for n in tree.args)
    if all(n.op == "mul" and len(n.args) == 2 and n.args[0] == Node("sym", ("partial",)) for n in tree.args):
        return "_".join(str(n.args[1].args[0]) for n in tree.args)
    marks = above[:1] == below[:1] == "d" and len(above) == len(below) == 2
    return f"{above[1]}'" if marks else None


def _called(tree: Node) -> str | None:
    """The name in f(x) or P(A): one letter times one bracketed symbol or number."""
    return (
        str(tree.args[0].args[0])
        if len(tree.args) == 2 and tree.args[0].op == "sym" and tree.args[0].args[0] in "fghFGHPpE"
        else None
    )


def last(tree: Node) -> Node:
    return tree.args[-1] if tree.op == "rel" else tree
