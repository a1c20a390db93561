"""Matrices and vectors in their spellings: columns, rows, tuples, sums of unit vectors, scaled and transposed."""

from __future__ import annotations

from verizero.verifiers.mathematics.decide.equation_chains import end_of
from verizero.verifiers.mathematics.decide.formulas import expressions_equal
from verizero.verifiers.mathematics.decide.quantities import numbers_equal
from verizero.verifiers.mathematics.policy import MathParams
from verizero.verifiers.mathematics.read.syntax_tree import (
    Node,
    has,
    is_constant,
    is_vector_sum,
    num,
    substitute,
    variables,
)

Rows = list[list[Node]]


def _rows(tree: Node) -> Rows | None:
    """Return the cells of a matrix (scaled, transposed), a tuple or a sum of unit vectors; None for anything else."""
    if tree.op == "matrix":
        return [list(row.args[2:]) for row in tree.args]
    if tree.op == "tuple":
        return [[a] for a in tree.args[2:]]
    if tree.op == "binom":
        return [[a] for a in tree.args]  # a column of two is often written \binom{1}{2}
    if tree.op == "transpose":
        inner = _rows(tree.args[0])
        if inner is None or tree.args[0].op == "tuple":
            return inner
        return [list(column) for column in zip(*inner, strict=True)] if len({len(r) for r in inner}) == 1 else None
    if is_vector_sum(tree):
        # The coordinate of an axis is the value of the sum where that unit vector is 1 and the others are 0.
        size = 3 if "vec k" in variables(tree) else 2
        units = [{f"vec {c}": num(int(c == axis)) for c in ("i", "j", "k", "imath", "jmath")} for axis in "ijk"[:size]]
        return [[substitute(tree, names)] for names in units]
    return _scaled(tree) if tree.op in {"mul", "neg", "div"} else None


def _scaled(tree: Node) -> Rows | None:
    """Return the cells of a matrix times or over a number, the operation done in every cell."""
    inner = [a for a in tree.args if has(a, "matrix", "tuple")]
    if len(inner) != 1 or (tree.op == "div" and inner[0] is not tree.args[0]):
        return None
    rows = _rows(inner[0])
    if rows is None:
        return None
    return [[Node(tree.op, tuple(c if a is inner[0] else a for a in tree.args)) for c in row] for row in rows]


def same_matrix(gold: Node, answer: Node, params: MathParams) -> bool | None:
    """True if both have equal cells; a tuple may also answer for a row or a column."""
    answer = end_of(answer)
    wanted, reached = _rows(gold), _rows(answer)
    if wanted is None or reached is None:
        return False
    if [len(r) for r in wanted] != [len(r) for r in reached]:
        written_flat = _is_line(wanted) and _is_line(reached) and "tuple" in {gold.op, answer.op}
        if not (written_flat or is_vector_sum(gold) or is_vector_sum(answer)):
            return False
        wanted, reached = [[c for r in wanted for c in r]], [[c for r in reached for c in r]]
        if len(wanted[0]) != len(reached[0]):
            return False
    cells = [(g, a) for row, other in zip(wanted, reached, strict=True) for g, a in zip(row, other, strict=True)]
    return all(numbers_equal(g, a, params) if is_constant(g) else expressions_equal(g, a, params) for g, a in cells)


def _is_line(rows: Rows) -> bool:
    return len(rows) == 1 or {len(r) for r in rows} == {1}
