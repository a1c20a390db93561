"""Read values of a row by a column mapping: a column, or a part of its content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from verizero.pipeline.config.columns import Column, OneColumn
from verizero.pipeline.errors import DataError
from verizero.pipeline.files import parse_json
from verizero.verifiers.answer.parts import last_box


class Missing(DataError):
    """A row has no value for the column."""


def pick(row: Mapping[str, Any], column: OneColumn) -> Any:
    """Return the row's value for the column. A part of a text is stripped of spaces, a whole text is not.

    Raises: Missing if the column, the key or the mark is not there or the value is empty (0 and false are values);
    DataError if it cannot be parsed. Both name the column.
    """
    if isinstance(column, Column) and column.columns:
        return _object(row, column.columns)
    value = _step_column(row, column.column)
    if column.then:
        value = "".join(str(v) for v in (value, *(_step_column(row, name) for name in column.then)))
    if column.parse or column.key is not None or column.after or column.before or column.boxed or column.replace:
        value = _part(value, column, f"column {column.column!r}")
    if value.strip() == "" if isinstance(value, str) else value is None or value in ([], {}):
        raise Missing(f"column {column.column!r} is empty")
    return value


def _part(value: Any, column: OneColumn, name: str) -> Any:
    """Return the part of the value that `column` asks for."""
    if column.parse is not None and isinstance(value, str):
        _require(value.strip(), f"{name} is empty")
        try:
            value = parse_json(value)
        except (ValueError, RecursionError) as exc:
            raise DataError(f"{name} is not JSON ({exc}), got {value!r:.80}") from exc
    if column.key is not None:
        value = _step(value, column.key, name)
    if column.after is not None or column.before is not None or column.boxed or column.replace:
        if not isinstance(value, str):
            raise DataError(f"{name} must be text to take a part of it, got {type(value).__name__}")
        value = _cut(value, column, name)
    return value


def _object(row: Mapping[str, Any], columns: Mapping[str, OneColumn]) -> dict[str, Any]:
    """Return the values of several columns. Those that the row lacks are left out; one must be there."""
    values = {key: pick_optional(row, column) for key, column in columns.items()}
    _require(
        any(v is not None for v in values.values()),
        f"none of the columns {', '.join(c.column for c in columns.values())} is there; columns there: "
        f"{', '.join(map(repr, row)) or 'none'}",
    )
    return {key: value for key, value in values.items() if value is not None}


def pick_optional(row: Mapping[str, Any], column: OneColumn | None) -> Any:
    """Return the row's value, or None if it is missing. Raises: DataError if it cannot be parsed."""
    if column is None:
        return None
    if column.column and column.column not in row and column.column.partition(".")[0] not in row:
        return None  # most rows lack most optional columns
    try:
        return pick(row, column)
    except Missing:
        return None


def _cut(text: str, column: OneColumn, name: str) -> str:
    if column.after is not None:
        _require(column.after in text, f"{name} has no {column.after!r}, got {text!r:.80}")
        # The last mark, as answers come last: "#### 5" ends the rows of GSM8K.
        text = text.rpartition(column.after)[2]
    if column.before is not None:
        _require(column.before in text, f"{name} has no {column.before!r}, got {text!r:.80}")
        text = text.partition(column.before)[0]
    if column.boxed:
        box = last_box(text)  # as a verifier reads a response, so that equal texts have equal answers
        if box.text is None:
            raise Missing(f"{name} has no closed \\boxed{{...}}, got {text[-80:]!r}")
        text = box.text
    for pattern, replacement in column.replace:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def _step_column(row: Mapping[str, Any], path: str) -> Any:
    """Return the value at `path`. A column whose name has these dots comes first."""
    if path in row:
        return row[path]
    first, _, rest = path.partition(".")
    if first not in row:
        raise Missing(f"there is no column {first!r}; columns there: {', '.join(map(repr, row)) or 'none'}")
    return _step(row[first], rest, f"column {first!r}") if rest else row[first]


def _step(value: Any, path: str, name: str) -> Any:
    for key in path.split("."):
        if isinstance(value, Mapping):
            _require(key in value, f"{name} has no key {key!r}; keys there: {', '.join(map(repr, value)) or 'none'}")
            value = value[key]
        elif isinstance(value, list) and key.isdigit():
            _require(int(key) < len(value), f"{name} has no item {key}, only {len(value)} items")
            value = value[int(key)]
        else:
            raise Missing(f"{name} is {value!r:.80}, which has no key {key!r}")
    return value


def _require(condition: object, message: str) -> None:
    if not condition:
        raise Missing(message)
