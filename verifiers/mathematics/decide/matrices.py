"""Matrices and vectors in their spellings: columns, rows, tuples, sums of unit vectors, scaled and transposed."""

from __future__ import annotations

from verifiers.mathematics.decide.equation_chains import value_of
from verifiers.mathematics.decide.formulas import expressions_equal
from verifiers.mathematics.decide.quantities import numbers_equal
from verifiers.mathematics.policy import MathParams
from verifiers.mathematics.read.syntax_tree import Node, has, is_constant, is_vector_sum, num, substitute, variables


def _rows(tree: Node) -> list[list[Node]] | None:
    """The cells of a matrix (scaled, transposed), a tuple or a sum of unit vectors, as rows; None if it is none."""
    if tree.op == "matrix":
        return [list(row.args[2:]) for row in tree.args]
    if tree.op == "tuple":
        return [[a] for a in tree.args[2:]]
    if tree.op == "binom":
        return [[a] for a in tree.args]
    if tree.op == "transpose":
        inner = _rows(tree.args[0])
        if inner is None or tree.args[0].op == "tuple":
            return inner
        return [list(column) for column in zip(*inner, strict=True)] if len({len(r) for r in inner}) == 1 else None
    if tree.op in {"mul", "neg", "div"} and not is_vector_sum(tree):
        return _scaled(tree)
    if is_vector_sum(tree):
        size = 3 if "vec k" in variables(tree) else 2
        units = [{f"vec {c}": num(int(c == axis)) for c in ("i", "j", "k", "imath", "jmath")} for axis in "ijk"[:size]]
        return [[substitute(tree, names)] for names in units]
    return None


def _scaled(tree: Node) -> list[list[Node]] | None:
    inner = [a for a in tree.args if has(a, "matrix", "tuple")]
    if len(inner) != 1 or (tree.op == "div" and inner[0] is not tree.args[0]):
        return None
    rows = _rows(inner[0])
    if rows is None:
        return None
    return [[Node(tree.op, tuple(c if a is inner[0] else a for a in tree.args)) for c in row] for row in rows]


def same_matrix(gold: Node, said: Node, params: MathParams) -> bool | None:
    if said.op == "rel":
        value = value_of(said)
        said = value.tree if value is not None else said
    one, two = _rows(gold), _rows(said)
    if one is None or two is None:
        return False
    if [len(r) for r in one] != [len(r) for r in two]:
        one_line = {len(r) for r in one} == {1} or len(one) == 1
        two_line = {len(r) for r in two} == {1} or len(two) == 1
        written_flat = one_line and two_line and "tuple" in {gold.op, said.op}
        if not (written_flat or is_vector_sum(gold) or is_vector_sum(said)):
            return False
        one, two = [[c for r in one for c in r]], [[c for r in two for c in r]]
        if len(one[0]) != len(two[0]):
            return False
    cells = [(g, s) for r, q in zip(one, two, strict=True) for g, s in zip(r, q, strict=True)]
    return all(numbers_equal(g, s, params) if is_constant(g) else expressions_equal(g, s, params) for g, s in cells)
