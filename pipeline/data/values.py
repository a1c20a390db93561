"""Values of cells: what is missing, and what objects of numpy, pandas and Arrow are in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any


def plain(value: Any) -> Any:
    """Return a cell as JSON has it: arrays are lists, decimals are numbers, dates are texts; NaN, NaT and NA are None.

    Raises: TypeError, ValueError for what is no text, number, list or object.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if value != value else value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is no text, number, list or object")


def is_missing(value: Any) -> bool:
    """True for a plain value that is not there: None, an empty list or object, or a text of spaces. 0 and false are."""
    return not value.strip() if isinstance(value, str) else value is None or value in ([], {})


def present(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a row that are there and can be read, as plain values."""
    cells = {}
    for name, cell in row.items():
        try:
            value = plain(cell)
        except (TypeError, ValueError):
            continue
        if not is_missing(value):
            cells[name] = value
    return cells


def table_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table without the keys in its cells whose value is null.

    A table adds them where another row has the key. Cells themselves and the items of lists stay as they are.
    """
    return {name: _without_nulls(cell) for name, cell in row.items()}


def _without_nulls(cell: Any) -> Any:
    if getattr(cell, "ndim", 0):  # an array, which pandas has for a list of Arrow
        cell = cell.tolist()
    if isinstance(cell, Mapping):
        return {key: _without_nulls(item) for key, item in cell.items() if item is not None}
    return [_without_nulls(item) for item in cell] if isinstance(cell, list) else cell


def _number(value: Decimal) -> int | float | str | None:
    """Return a number of equal value; the digits, where Python has none; None for NaN."""
    if value.is_nan():
        return None
    if value.is_finite() and value == value.to_integral_value():
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else str(value)
