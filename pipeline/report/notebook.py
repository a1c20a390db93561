"""Progress in a notebook: a table under the cell that changes while the run goes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from verizero.pipeline.shown import in_html, visible

EVERY_S = 0.3
"""Seconds between two pictures of the table: a page redraws them all."""
MOST_LINES = 200
"""Lines that stay under the table; the run's log has all of them."""
HEAD = ("", "steps", "", "time")


@dataclass(slots=True)
class _Row:
    """One item of the run."""

    what: str
    total: int
    begun: float
    done: int = 0
    numbers: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def in_notebook() -> bool:
    """True if this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class LiveTable:
    """A row for each item, what is under way, and the lines that the run says."""

    def __init__(self, show: Callable[[Any], Any] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """show: displays an object and returns its handle, whose `update` replaces it; None: IPython's."""
        self._show = show or _display
        self._clock = clock
        self._rows: list[_Row] = []
        self._lines: list[str] = []
        self._under_way = ""
        self._handle: Any = None
        self._last = -EVERY_S

    def begin(self, what: str, done: int, total: int) -> None:
        """Add a row."""
        self._rows.append(_Row(what, total, self._clock(), done))
        self._draw()

    def advance(self, done: int, numbers: dict[str, float]) -> None:
        """Update the last row."""
        if self._rows:
            row = self._rows[-1]
            row.done, row.numbers, row.seconds = done, numbers, self._clock() - row.begun
            self._draw(is_due=done >= row.total)

    def under_way(self, what: str, done: int = 0, total: int = 0) -> None:
        """Show what is under way, and the share of its responses that are done."""
        self._under_way = f"{what}, {100 * done // total}% of {total} responses" if total else what
        self._draw()

    def say(self, text: str) -> None:
        """Add a line under the table."""
        self._lines = [*self._lines, text][-MOST_LINES:]
        self._draw(is_due=True)

    def close(self) -> None:
        """Show the last state, in which nothing is under way."""
        self._under_way = ""
        if self._handle is not None:
            self._draw(is_due=True)

    def _draw(self, is_due: bool = False) -> None:
        now = self._clock()
        if not is_due and now - self._last < EVERY_S:
            return
        self._last = now
        if self._handle is None:
            self._handle = self._show(self)
        else:
            self._handle.update(self)

    def _cells(self) -> list[tuple[str, str, str, str]]:
        return [
            (
                row.what,
                f"{row.done}/{row.total}" if row.total > 1 else "",
                "  ".join(f"{name} {value:.3g}" for name, value in row.numbers.items()),
                f"{row.seconds:.0f} s",
            )
            for row in self._rows
        ]

    def __repr__(self) -> str:
        rows = ["  ".join(filter(None, cells)) for cells in self._cells()]
        return visible("\n".join([*rows, *filter(None, [self._under_way]), *self._lines]))

    def _repr_html_(self) -> str:
        style = ' style="text-align:left;white-space:pre-wrap;padding:2px 10px"'
        rows = "".join(
            "<tr>" + "".join(f"<td{style}>{in_html(cell)}</td>" for cell in cells) + "</tr>" for cells in self._cells()
        )
        head = "".join(f"<th{style}>{cell}</th>" for cell in HEAD)
        under_way = f"<div><i>{in_html(self._under_way)} …</i></div>" if self._under_way else ""
        lines = "".join(f"<div{style}>{in_html(line)}</div>" for line in self._lines)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if self._rows else ""
        return f"<div>{table}{under_way}{lines}</div>"


def _display(value: Any) -> Any:
    from IPython.display import display

    return display(value, display_id=True)
