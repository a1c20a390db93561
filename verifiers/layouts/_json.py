"""JSON of data sets, with integers of any length, which Python refuses to read beyond 4,300 digits."""

from __future__ import annotations

import json
from typing import Any

DIGITS = 4_000
"""Digits that are read at a time, below Python's own limit."""


def read_json(text: str) -> Any:
    """Return the value of a JSON text. Raises: ValueError; RecursionError."""
    return json.loads(text, parse_int=_integer)


def _integer(text: str) -> int:
    if len(text) <= DIGITS:
        return int(text)
    digits, value = text.lstrip("-"), 0
    for start in range(0, len(digits), DIGITS):
        piece = digits[start : start + DIGITS]
        value = value * 10 ** len(piece) + int(piece)
    return -value if text[0] == "-" else value
