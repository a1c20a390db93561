"""Numbers and responses that a trainer has logged, and what is known of each trainer: its names, options, remedies."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from verizero.pipeline.host.disk import numbered_jsonl

MAX_RESPONSE_BYTES = 20_000_000
"""Bytes of sampled responses that are read: of more files, those of some steps from the first to the last."""
NOT_FINITE = "not_finite"
"""Name of a number that is 1 at the steps whose loss or gradient is no number."""
OF_UPDATES = ("grad_norm", "loss", "entropy")
"""Ends of the names of numbers that every update has. TRL writes 0 for a loss that is NaN."""
NOT_OF_UPDATES = frozenset(("eval", "val", "validation", "test", "best"))
"""Parts of names of losses that no update computes."""
MAX_FIRST = 20
"""Objects of a file by which its kind is known."""
MOST_STEPS = 10**12
MOST_BACK = 0.1
"""Share of the rows whose step is before that of the row above, from which on a log has no order."""
MOST_NAMED = 4
"""Files that are named in a line."""


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

    def add_row(self, file: Path, line: int, step: Any, values: Mapping[str, Any]) -> None:
        """Add the numbers of a step, if there are any and it is one."""
        if (own := numbers(values)) and isinstance(step, int | float) and 0 <= step < MOST_STEPS:
            self.rows.append(LoggedRow(str(file), line, int(step), own))

    def chosen(self, files: Mapping[Path, int], what: str, written: float = 0.0) -> list[Path]:
        """Return the files of responses that are read, of files in order -> their steps; say how many are not.

        Those of steps after the last that was logged, older than the log, which was written at `written`, are of an
        earlier run. Of more than `MAX_RESPONSE_BYTES`: every second, third, ... file, and the last. `what`: their name.
        """
        last = max((row.step for row in self.rows), default=MOST_STEPS)
        own = [file for file, step in files.items() if step <= last or file.stat().st_mtime >= written]
        stride = max(1, math.ceil(sum(f.stat().st_size for f in own) / MAX_RESPONSE_BYTES))
        kept = [f for i, f in enumerate(own) if i % stride == 0 or i == len(own) - 1]
        for left, total, why in ((own, files, "of an earlier run"), (kept, own, "many bytes")):
            if len(left) < len(total):
                self.skipped.append(f"{len(total) - len(left)} of {len(total)} {what}, which are {why}")
        return kept

    def newest(self, runs: Mapping[Path, Sequence[Path]]) -> Path:
        """Return the name of the run whose files, by its name, were written last; say that there are others."""
        last, *others = sorted(runs, key=lambda name: -max(file.stat().st_mtime for file in runs[name]))
        self.skip_runs(others)
        return last

    def skip_runs(self, others: Sequence[Path]) -> None:
        """Say that other runs are at the path, which are not judged."""
        if others:
            self.skipped.append(f"{len(others)} older runs, as {others[0]}; name one of them to judge it")

    def objects(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each line of a JSONL file, and its object; count lines without one before the last."""
        number = skipped = 0
        for line, row in numbered_jsonl(path):
            skipped, number = skipped + line - number - 1, line
            yield line, row
        self.count_lines(skipped, path)

    def count_lines(self, skipped: int, path: Path) -> None:
        """Say how many lines of a file could not be read."""
        if skipped:
            self.skipped.append(f"{skipped} line{'s' * (skipped > 1)} of {path} that cannot be parsed")

    def keep_last_run(self) -> None:
        """Leave out rows whose steps come again later: a run that was resumed did them again, or another began."""
        kept, times = list[LoggedRow](), 0
        for row, following in zip(self.rows, [*self.rows[1:], *self.rows[-1:]], strict=True):
            if kept and row.step < kept[-1].step < following.step:
                continue  # a line that somebody printed
            if kept and row.step < kept[-1].step:
                times += 1
                while kept and kept[-1].step >= row.step:
                    kept.pop()
            kept.append(row)
        if len(kept) < len(self.rows) and times <= MOST_BACK * len(self.rows):  # else the log has no order
            self.skipped.append(
                f"rows of steps that the log has again, {len(self.rows) - len(kept)} of an earlier start"
            )
            self.rows = kept


def first_row(path: Path, *names: str) -> dict[str, Any] | None:
    """Return the first object with these names among the first of a JSONL file; None if there is none."""
    rows = (row for _, row in islice(numbered_jsonl(path), MAX_FIRST))
    return next((row for row in rows if row.keys() >= set(names)), None)


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
        elif str(name).endswith(OF_UPDATES) and NOT_OF_UPDATES.isdisjoint(re.split("[/_]", str(name))):
            finite[NOT_FINITE] = 1.0
    return finite


def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a nested configuration, with the names on the way to each joined by points."""
    leaves: dict[str, Any] = {}
    rest = list(tree.items())[::-1]
    while rest:
        name, value = rest.pop()
        if isinstance(value, Mapping) and value:
            rest += [(f"{name}.{inner}", below) for inner, below in list(value.items())[::-1]]
        else:
            leaves[str(name)] = value
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


def whole_reward(parts: Mapping[str, float | None], weights: Any) -> float | None:
    """Return the weighted sum of what the reward functions gave; None if none of them gave anything."""
    if not parts or all(v is None or v != v for v in parts.values()):
        return None
    own = weights_of(weights, len(parts))
    return float(sum(w * v for w, v in zip(own, parts.values(), strict=True) if v is not None and v == v))


def weights_of(weights: Any, count: int) -> list[float]:
    """Return the weights of so many reward functions; 1 each if the option has none, or none that are numbers."""
    own = (
        list(numbers({str(i): w for i, w in enumerate(weights)}).values()) if isinstance(weights, list | tuple) else []
    )
    return own if len(own) == count else [1.0] * count
