"""Chains of equals signs: the value that they end in, the name that it gets, and contradictions between members."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from verizero.verifiers.mathematics.decide.equality import same
from verizero.verifiers.mathematics.decide.names import name_of
from verizero.verifiers.mathematics.decide.quantities import MARKS, explicitly_rounded, quantity
from verizero.verifiers.mathematics.read.syntax_tree import (
    Node,
    children,
    has,
    has_word,
    is_constant,
    is_vector_sum,
    variables,
)
from verizero.verifiers.mathematics.words.tables import words_of

DENYING = words_of("not never neither maybe perhaps possibly unless if wrong incorrect")


class Value(NamedTuple):
    """The value at the end of a chain of equals signs, with the name that the chain gives it."""

    tree: Node
    name: str | None = None
    approximate: bool = False
    """True if only a sign of approximation leads to it."""
    of: Node | None = None
    """The expression, such as a + b, of which it is the value, if that is no name."""

    @property
    def label(self) -> str | None:
        """Return what the value is of: its name or expression."""
        return self.name or (str(self.of) if self.of is not None else None)


class Contradiction(Exception):
    """Members of a chain of equals signs differ: x = 42 = 43."""


def value_of(tree: Node) -> Value | None:
    """Return the value that an expression or a chain of equals signs ends in.

    None stands for another statement, such as an inequality, or an equation that is not solved.

    Raises: Contradiction if constant members differ.
    """
    if tree.op != "rel":
        return Value(tree)
    if set(tree.args[1::2]) - {"=", "≈"}:
        return None
    members, signs = list(tree.args[::2]), list(tree.args[1::2])
    if has_word(members[0], DENYING):
        return None
    if len(members) == 2 and is_constant(members[0]) and members[1].op == "sym":
        members.reverse()  # 3 = x
    name = name_of(members[0])
    if name is not None:
        members, signs = members[1:], signs[1:] if len(members) > 2 else []
    # The members up to the first sign of approximation are exact; the last of them is the value.
    num_exact = 1 if tree.args[1] != "≈" or name is None else 0
    while num_exact and num_exact < len(members) and signs[num_exact - 1] == "=":
        num_exact += 1
    before, rounded = members[: max(num_exact, 1)], members[max(num_exact, 1) :]
    value = before[-1]
    if name is None and len(members) > 1 and not _is_plain_left(members[0], value):
        return None
    named = tree.args[0]
    if named.op == value.op == "tuple" and len(named.args) != len(value.args):
        return None
    # 777 = 3x + 2 is an equation, though 3x + 2 = 5 could be a value.
    if any(is_constant(left) and _is_formula(right) for left, right in pairwise(before)):
        return None
    for left, right in pairwise([m for m in before if not _is_formula(m)]):
        if _differ(left, right):
            raise Contradiction
    for member in rounded if num_exact else []:
        if is_constant(value) and is_constant(member) and not _near(value, member):
            raise Contradiction
    of = members[0] if name is None and len(members) > 1 and variables(members[0]) else None
    return Value(value, name, not num_exact, of)


def end_of(tree: Node) -> Node:
    """Return the value of a chain as `value_of` does; any other statement as it is."""
    value = value_of(tree)
    return tree if value is None else value.tree


def last(tree: Node) -> Node:
    """Return the last member of a chain; any other tree as it is."""
    return tree.args[-1] if tree.op == "rel" else tree


def _is_formula(tree: Node) -> bool:
    """True if it has names other than units and counted things."""
    return has(tree, "sym", "call")


def _differ(left: Node, right: Node) -> bool:
    """True if two values without free names are surely not the same: numbers, quantities, points and sets of them."""
    if left.op == right.op and left.op in {"tuple", "matrix", "set"}:
        items, others = children(left), children(right)
        if len(items) != len(others):
            return True
        if left.op == "set":
            return not all(any(not _differ(a, b) for b in others) for a in items)
        return any(_differ(a, b) for a, b in zip(items, others, strict=True))
    if is_constant(left) and is_constant(right):
        return same(left, right) is False
    if not has(left, *MARKS) and not has(right, *MARKS):
        return False
    one_side, other_side = quantity(left), quantity(right)
    if one_side is None or other_side is None:
        return False
    # 5 = 5 cm is fine, as is 50 mm = 5 cm.
    return same(one_side.raw, other_side.raw) is False and same(one_side.value, other_side.value) is False


def _near(value: Node, rounded: Node) -> bool:
    return explicitly_rounded(rounded, value) or same(value, rounded) is True


def _is_plain_left(left: Node, value: Node) -> bool:
    """True if the left side may just be what the problem asked for: a + b = 42, but not y - 2x = 42."""
    names = variables(left)
    if not names or (not _is_formula(left) and quantity(left) is not None):
        return True
    if is_vector_sum(value):
        return not is_vector_sum(left) and not has(left, "word", "num", "dec")
    if not is_constant(value):
        return names == variables(value) and same(left, value) is True
    return len(names) > 1 and not has(left, "word", "num", "dec")
