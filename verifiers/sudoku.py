"""Sudoku of any square size: the grid is checked against the rules and the givens, not against one solution."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.pipeline.fences import blocks_in
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import Answer, after_thinking, boxed_or_tagged
from verizero.verifiers.base import VerifierParams, verifier

Grid = list[list[int]]
FRAME = re.compile(r"[\s|+\-,;&\[\]()$\u2500-\u257f]|\\[\[\]]|\\\\|\\hline|\\(?:begin|end)\{[a-z]+\}(?:\{[|lcr]+\})?")
MAX_CHARS = 10_000


class SudokuParams(VerifierParams):
    """Sudoku has no parameters."""


@verifier
def sudoku(attempt: Attempt, params: SudokuParams) -> Verdict:
    """Return 1 if the answer is a full grid that keeps the givens and holds every digit once per row, column and box.

    Reference: {"puzzle": text of n*n digits with 0 or . for empty, or rows}. Sizes 4, 9, 16 (a to g for 10 to 16).
    The grid is read from a box, `<answer>` tags, the last fence, or the whole answer; frames are ignored, words not.
    """
    puzzle = _puzzle(attempt.reference)
    answer = _grid_text(attempt)
    if answer.text is None:
        return answer.no_answer()
    size, extracted = len(puzzle), answer.text[:400]
    cells = _cells(answer.text, size)
    if cells is None or len(cells) != size * size or 0 in cells:
        return Verdict("graded", 0.0, "not_a_full_grid", extracted)
    grid = [cells[i * size : (i + 1) * size] for i in range(size)]
    for r, (row, givens) in enumerate(zip(grid, puzzle, strict=True)):
        for c, (cell, digit) in enumerate(zip(row, givens, strict=True)):
            if digit and cell != digit:
                return Verdict("graded", 0.0, f"given_changed: row {r + 1} column {c + 1}", extracted)
    broken = _broken_rule(grid)
    return Verdict("graded", float(broken is None), broken or "solved", extracted)


def _broken_rule(grid: Grid) -> str | None:
    size, box = len(grid), math.isqrt(len(grid))
    wanted = set(range(1, size + 1))
    for i in range(size):
        top, left = i // box * box, i % box * box
        square = {grid[top + r][left + c] for r in range(box) for c in range(box)}
        for what, unit in (("row", set(grid[i])), ("column", {row[i] for row in grid}), ("box", square)):
            if unit != wanted:
                return f"rule_broken: {what} {i + 1}"
    return None


def _grid_text(attempt: Attempt) -> Answer:
    part = after_thinking(attempt)
    if part.text is None:
        return part
    answer = boxed_or_tagged(part.text)
    if answer is not None:
        return Answer(None, "several_answers") if answer.text is not None and answer.others else answer
    blocks, left_open = blocks_in(part.text)
    if blocks or left_open:
        return Answer(blocks[-1].text, "fenced") if blocks else Answer(None, "unclosed_fence")
    return Answer(None, "truncated") if attempt.truncated else part


def _cells(text: str, size: int) -> list[int] | None:
    """Return the cells in reading order; None if anything but cells and frames is in the text."""
    if len(text) > MAX_CHARS:
        return None
    if size > 9 and re.search(r"[0-9]{2}", FRAME.sub(" ", text)):
        words = FRAME.sub(" ", text).split()
        if all(w.isdecimal() and len(w) <= 2 for w in words):
            return [int(w) if int(w) <= size else 0 for w in words]
    bare = FRAME.sub("", text)
    try:
        cells = [0 if c == "." else int(c, 17) for c in bare.lower()]
    except ValueError:
        return None
    return [c if c <= size else 0 for c in cells]


def _puzzle(reference: Any) -> Grid:
    puzzle = reference.get("puzzle") if isinstance(reference, Mapping) else reference
    if isinstance(puzzle, list):
        if all(isinstance(row, list) for row in puzzle):
            cells: list[int] | None = [int(c or 0) for row in puzzle for c in row]
        else:
            cells = _cells("".join(map(str, puzzle)), 16)
    else:
        cells = _cells(puzzle, 16) if isinstance(puzzle, str) else None
    size = math.isqrt(len(cells or []))
    if not cells or size not in (4, 9, 16) or size * size != len(cells) or max(cells) > size:
        raise DataError(f'reference: expected {{"puzzle": 16, 81 or 256 cells, 0 if empty}}, got {puzzle!r:.80}')
    return [cells[i * size : (i + 1) * size] for i in range(size)]
