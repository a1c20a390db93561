"""Rows of programs, recognised by their columns: the shipped mapping that reads most of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from verizero.pipeline.config.columns import OneColumn
from verizero.pipeline.config.data import MAPPINGS, ColumnMapping, shipped_mapping
from verizero.pipeline.data.columns import pick
from verizero.pipeline.data.graded_by import gradable
from verizero.pipeline.errors import DataError

VERIFIERS = ("code", "unit_tests")
MOST = 5
"""Rows that are read; each may hold megabytes of tests."""


def mapping_of_programs(rows: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the fields of the shipped mapping that reads the most columns of these rows, if any does."""
    fitting = [(_num_columns(m, rows[0]), name) for name, m in _mappings().items() if _reads(m, rows[:MOST])]
    if not fitting:
        return None
    name = max(fitting, key=lambda item: (item[0], item[1]))[1]
    return name, shipped_mapping(name)


@lru_cache(maxsize=1)
def _mappings() -> dict[str, ColumnMapping]:
    shipped = {p.stem: ColumnMapping.model_validate(shipped_mapping(p.stem)) for p in sorted(MAPPINGS.glob("*.yaml"))}
    return {name: mapping for name, mapping in shipped.items() if mapping.default_verifier in VERIFIERS}


def _reads(mapping: ColumnMapping, rows: Sequence[Mapping[str, Any]]) -> bool:
    """True if every row has a question, and any has tests that can be read: some data sets have bad rows."""
    num_read = 0
    for row in rows:
        try:
            pick(row, mapping.question)
        except DataError:
            return False
        try:
            gradable(str(mapping.default_verifier), mapping.answer and pick(row, mapping.answer))
        except DataError:
            continue
        num_read += 1
    return num_read > 0


def _num_columns(mapping: ColumnMapping, row: Mapping[str, Any]) -> int:
    """Return how many columns of the mapping the row has."""
    columns: list[OneColumn | None] = [mapping.question, *mapping.context, mapping.id, mapping.demonstration]
    if mapping.answer is not None:
        columns += mapping.answer.columns.values() or [mapping.answer]
    return len({c.column.partition(".")[0] for c in columns if c is not None} & row.keys())
