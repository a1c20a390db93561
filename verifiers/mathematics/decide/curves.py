"""Curves and lines: equations with the same solutions, and expressions that are linear in vectors."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from verizero.verifiers.mathematics.decide.equality import same
from verizero.verifiers.mathematics.decide.regions import FLIPPED
from verizero.verifiers.mathematics.read.syntax_tree import (
    AXES,
    Node,
    children,
    difference,
    neg,
    nodes,
    num,
    substitute,
    sym,
    variables,
)

SIZE, DRAWS, MAX_POWER = 3, 2, 12
TOLERANCE = 1e-9
MARKS = (num(-1), sym("T"))


class _NoValue(Exception):
    """The expression has no value of this kind, such as the sum of a vector and a number."""


def is_linear(tree: Node) -> bool:
    """True if the tree has names of vectors, or a product of capitals that can only be one of matrices."""
    return any(
        n.op == "cross"
        or (n.op == "sym" and n.args[0].startswith("vec ") and n.args[0][4:] not in AXES)
        or (n.op == "pow" and n.args[1] in MARKS and n.args[0].op in {"mul", "add"} and _has_only_matrices(n))
        or (n.op == "det" and n.args[0].op != "matrix" and all(map(_is_matrix, variables(n))))
        or (n.op == "mul" and any(a.op == "pow" and a.args[1] in MARKS for a in n.args) and _has_only_matrices(n))
        for n in nodes(tree)
    )


def _has_only_matrices(tree: Node) -> bool:
    if any(n.op not in {"mul", "pow", "sym", "add", "neg", "num"} for n in nodes(tree)):
        return False
    return all(map(_is_matrix, variables(tree))) and len(variables(tree)) > 1  # A and B, or A and T


def _is_matrix(name: str) -> bool:
    return len(name) == 1 and "A" <= name <= "Z"


def same_linear(gold: Node, answer: Node) -> bool | None:
    """True if both have the same values for vectors and matrices in the place of their names; None if undecided."""
    source = random.Random(zlib.crc32(repr((gold, answer)).encode()))
    for _ in range(DRAWS):
        known = _drawn(sorted(variables(gold) | variables(answer)), source)
        try:
            wanted, reached = _value(gold, known), _value(answer, known)
        except (_NoValue, ArithmeticError, ValueError, np.linalg.LinAlgError):
            return None
        if np.shape(wanted) != np.shape(reached) or not np.allclose(wanted, reached, rtol=TOLERANCE, atol=TOLERANCE):
            return False
    return True


def _drawn(names: list[str], source: random.Random) -> dict[str, Any]:
    """Return a vector for each name with an arrow, a matrix for each capital, and a number for any other name."""

    def array(*shape: int) -> Any:
        return np.array([source.uniform(-2, 2) for _ in range(SIZE ** len(shape))]).reshape(shape)

    points = {c: array(SIZE) for n in names if n.startswith("vec ") for c in n[4:] if c.isupper()}
    known: dict[str, Any] = {}
    for name in names:
        bare = name.removeprefix("vec ")
        if bare == name == "nabla":
            known[name] = array(SIZE)
        elif bare == name:
            known[name] = array(SIZE, SIZE) if _is_matrix(name) and name != "I" else source.uniform(1, 2)
        elif bare in AXES:
            known[name] = np.eye(SIZE)["ijk".index(bare.removesuffix("math"))]
        else:  # AB leads from A to B
            known[name] = points[bare[1]] - points[bare[0]] if len(bare) == 2 and bare.isupper() else array(SIZE)
    return known | ({"I": np.eye(SIZE)} if any(map(_is_matrix, names)) else {})


def _value(tree: Node, known: dict[str, Any]) -> Any:
    if tree.op in {"num", "dec"}:
        return float(tree.args[0])
    if tree.op == "sym":
        return known[tree.args[0]]
    if tree.op == "pow" and tree.args[1] == sym("T"):
        return np.transpose(_value(tree.args[0], known))
    operation = OPERATIONS.get(tree.op if tree.op != "call" else str(tree.args[0]).lower())
    if operation is None:
        raise _NoValue
    return operation(*(_value(a, known) for a in children(tree)))


def _sum(a: Any, b: Any) -> Any:
    if np.shape(a) != np.shape(b):
        raise _NoValue
    return a + b


def _product(a: Any, b: Any) -> Any:
    """Return the product; of two vectors the dot product."""
    return a * b if not np.ndim(a) or not np.ndim(b) else a @ b


def _power(base: Any, exponent: Any) -> Any:
    if not np.ndim(base):
        return base**exponent
    if abs(exponent) > MAX_POWER or exponent != round(exponent) or (np.ndim(base) == 1 and exponent != 2):
        raise _NoValue
    return base @ base if np.ndim(base) == 1 else np.linalg.matrix_power(base, round(exponent))


def _size(a: Any) -> Any:
    """Return |a|: the length of a vector, the determinant of a matrix."""
    return (abs, np.linalg.norm, np.linalg.det)[np.ndim(a)](a)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda *terms: reduce(_sum, terms),
    "neg": lambda a: -a,
    "mul": lambda *factors: reduce(_product, factors),
    "cross": np.cross,
    "div": lambda a, b: _product(a, _power(b, -1.0)),
    "pow": _power,
    "root": lambda a, degree: _power(a, 1 / degree),
    "abs": _size,
    "det": np.linalg.det,
    "tr": np.trace,
    "trace": np.trace,
}


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
