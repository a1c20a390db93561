"""Numbers and responses that a trainer has logged, and what is known of each trainer: its names, options, remedies."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verizero.pipeline.host.disk import parse_json

MAX_RESPONSE_BYTES = 20_000_000
"""Bytes of sampled responses that are read: of more files, those of some steps from the first to the last."""
NOT_FINITE = "not_finite"
"""Name of a number that is 1 at the steps whose loss or gradient is no number."""
NOT_OF_UPDATES = frozenset(("eval", "val", "validation", "test", "best"))
"""Parts of names of losses that no update computes."""
MAX_LINE = 10_000_000
"""Bytes of the first line of a file, by which its kind is known."""


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
    is_held_out: bool = False


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

    def chosen(self, files: Sequence[Path], what: str) -> list[Path]:
        """Return the files of responses, given in order of their steps, that are read; say how many are not.

        Where all are more than `MAX_RESPONSE_BYTES`: every second, third, ... file, and the last. `what`: their name.
        """
        stride = max(1, math.ceil(sum(f.stat().st_size for f in files) / MAX_RESPONSE_BYTES))
        kept = [f for i, f in enumerate(files) if i % stride == 0 or i == len(files) - 1]
        if len(kept) < len(files):
            self.skipped.append(f"{len(files) - len(kept)} of {len(files)} {what}, which are many bytes")
        return kept


def first_row(path: Path) -> dict[str, Any] | None:
    """Return the object in the first line of a JSONL file; None if there is none."""
    try:
        with path.open("rb") as file:
            row = parse_json(file.readline(MAX_LINE))
    except (OSError, ValueError):
        return None
    return row if isinstance(row, dict) else None


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers, also in texts, and `NOT_FINITE` for a loss or gradient that is NaN or infinite."""
    finite: dict[str, float] = {}
    for name, value in values.items():
        number = value
        if type(value) is not float:  # nearly all are, and a log may have millions
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                continue
            try:
                number = float(value)
            except (ValueError, OverflowError):
                continue
        if math.isfinite(number):
            finite[str(name)] = number
        elif str(name).endswith(("grad_norm", "loss")) and NOT_OF_UPDATES.isdisjoint(re.split("[/_]", str(name))):
            finite[NOT_FINITE] = 1.0
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


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A trainer, its words, and the remedies in them."""

    name: str
    """As after --from."""
    title: str
    metrics: Mapping[str, str]
    """Its name of a number -> ours. Names before `prefixes` are taken off."""
    signs: tuple[str, ...]
    """Names of numbers that no other tool writes."""
    prefixes: tuple[str, ...] = ()
    options: Mapping[str, str]
    """Its option -> the field of a recipe that means the same, for example rl.optimizer.learning_rate."""
    ratio_level: str = ""
    """Its option that is "sequence" where the ratios that are clipped are those of whole responses."""
    where: str = ""
    """The place that its options are written in."""
    remedies: Mapping[str, str] = field(default_factory=dict)
    """Cause -> what to do, where the rule's own remedy is no change of an option."""
    logs_if: Mapping[str, str] = field(default_factory=dict)
    """Our name of a number -> when this tool logs it."""
    derive: Callable[[dict[str, float], Logged], None] = lambda values, logged: None
    """Adds our numbers that follow from several of its own, to the numbers of a step."""

    def plain(self, name: str) -> str:
        """Return a number's name without its prefix."""
        return next((name.removeprefix(p) for p in self.prefixes if name.startswith(p)), name)

    def ours(self, name: str) -> str | None:
        """Return our name of a number; None if the rules do not read it."""
        return self.metrics.get(self.plain(name), name if name == NOT_FINITE else None)

    def theirs(self, name: str) -> str:
        """Return the tool's name of a number of ours; ours if it has none."""
        return next((own for own, of_ours in self.metrics.items() if of_ours == name), name)
