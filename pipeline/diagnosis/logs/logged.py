"""Numbers and responses that a tool has logged, under the tool's own names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verizero.pipeline.files import parse_json

MAX_RESPONSE_BYTES = 20_000_000
"""Bytes of sampled responses that are read: of more files, those of some steps from the first to the last."""
MAX_NUMBER_BYTES = 32_000_000
"""Bytes of numbers that are read of a file: of a larger one, half from its beginning and half from its end."""
MAX_LINE = 10_000_000


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """Numbers of one step."""

    file: str
    line: int
    step: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LoggedResponse:
    """A sampled response, with its rewards."""

    file: str
    line: int
    step: int
    prompt: str
    response: str
    reward: float | None
    """The whole reward; None: the reward functions gave none."""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """Reward of each function."""
    reference: str | None = None
    is_held_out: bool = False
    is_cut: bool | None = None
    """True if the length limit ended it; None: not known."""


@dataclass
class Logged:
    """All that was found at a path."""

    files: list[str] = field(default_factory=list)
    rows: list[LoggedRow] = field(default_factory=list)
    responses: list[LoggedResponse] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """Option -> value; the options of a nested configuration are joined by points."""
    model: dict[str, Any] = field(default_factory=dict)
    """Facts of the model's folder: `marks_missing`, marks of its chat template that are no tokens."""
    skipped: list[str] = field(default_factory=list)
    """Files that were not read, with the reasons."""

    @property
    def names(self) -> set[str]:
        """Names of all numbers."""
        return {name for row in self.rows for name in row.values}

    def add(self, other: Logged) -> None:
        """Take in what was found at another path."""
        self.files += other.files
        self.rows += other.rows
        self.responses += other.responses
        self.settings |= other.settings
        self.model |= other.model
        self.skipped += other.skipped


def first_row(path: Path) -> dict[str, Any] | None:
    """Return the object in the first line of a JSONL file; None if there is none."""
    try:
        with path.open("rb") as file:
            row = parse_json(file.readline(MAX_LINE))
    except (OSError, ValueError):
        return None
    return row if isinstance(row, dict) else None


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among the values; texts that are numbers count too, as consoles print them."""
    finite: dict[str, float] = {}
    for name, value in values.items():
        if type(value) is float:  # nearly all of them, and a log may have millions
            if math.isfinite(value):
                finite[str(name)] = value
            continue
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        try:
            number = float(value)
        except (ValueError, OverflowError):
            continue
        if math.isfinite(number):
            finite[str(name)] = number
    return finite


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a nested configuration, with the names on the way to each joined by points."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves


def is_middle(place: int, size: int) -> bool:
    """True if what begins at this byte of a file of numbers is not read."""
    return size > MAX_NUMBER_BYTES and MAX_NUMBER_BYTES // 2 <= place < size - MAX_NUMBER_BYTES // 2


def name_file(file: Path, logged: Logged) -> None:
    """Add a file of numbers to those that are read, and say so if its middle is not."""
    logged.files.append(str(file))
    size = file.stat().st_size
    if size > MAX_NUMBER_BYTES:
        logged.skipped.append(f"{(size - MAX_NUMBER_BYTES) / 1e6:.0f} of {size / 1e6:.0f} MB of {file}, in its middle")


def chosen_files(files: Iterable[Path]) -> tuple[list[Path], int]:
    """Return the files, given in order of their steps, that are read, and the number of those that are left out.

    Where all are more than `MAX_RESPONSE_BYTES`, every second, third, ... file, and the last.
    """
    every = list(files)
    sizes = sum(f.stat().st_size for f in every)
    stride = max(1, math.ceil(sizes / MAX_RESPONSE_BYTES))
    kept = [f for i, f in enumerate(every) if i % stride == 0 or i == len(every) - 1]
    return kept, len(every) - len(kept)
