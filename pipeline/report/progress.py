"""Progress of a run for a person: a bar per phase in a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

from verizero.pipeline.shown import one_line

if TYPE_CHECKING:
    from rich.progress import TaskID

LINE_EVERY_S = 10.0


class Progress(Protocol):
    """Receives items, steps and numbers, and may show them."""

    def begin(self, what: str, done: int, total: int) -> None:
        """Begin an item of `total` steps, `done` of which are already made."""
        ...

    def advance(self, done: int, numbers: dict[str, float]) -> None:
        """Take the number of steps done, and the numbers that changed."""
        ...

    def say(self, text: str) -> None:
        """Show one line that stays."""
        ...

    def close(self) -> None:
        """End the display."""
        ...


class Silent:
    """Shows nothing."""

    def begin(self, what: str, done: int, total: int) -> None:
        """Do nothing."""

    def advance(self, done: int, numbers: dict[str, float]) -> None:
        """Do nothing."""

    def say(self, text: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Lines:
    """Plain lines for logs and pipes: at most one every LINE_EVERY_S seconds, and one at each end."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stderr
        self.what, self.total, self.last, self.start = "", 0, 0.0, time.monotonic()

    def begin(self, what: str, done: int, total: int) -> None:
        """Say what begins."""
        self.what, self.total, self.last = what, total, time.monotonic()
        if total > 1:
            self.say(f"{what}: {total} steps" + (f", {done} of them done before" if done else ""))

    def advance(self, done: int, numbers: dict[str, float]) -> None:
        """Say how far it is, not too often."""
        if done >= self.total or time.monotonic() - self.last >= LINE_EVERY_S:
            self.last = time.monotonic()
            self.say(f"{self.what} {done}/{self.total}  {_brief(numbers)}".rstrip())

    def say(self, text: str) -> None:
        """Print one line, with the seconds since the start."""
        print(f"[{time.monotonic() - self.start:6.1f} s] {one_line(text)}", file=self.out, flush=True)

    def close(self) -> None:
        """Do nothing: nothing is held."""


class Bars:
    """A live bar in a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich

        self.rich = Rich(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.rich.start()
        self.task: TaskID | None = None

    def begin(self, what: str, done: int, total: int) -> None:
        """Add a bar; those before stay."""
        self.task = self.rich.add_task(one_line(what), total=max(1, total), completed=done, numbers="")

    def advance(self, done: int, numbers: dict[str, float]) -> None:
        """Move the bar."""
        if self.task is not None:
            self.rich.update(self.task, completed=done, numbers=_brief(numbers))

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.rich.console.print(one_line(text), markup=False, highlight=False, emoji=False)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.rich.stop()

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def for_terminal() -> Progress:
    """Bars where there is a terminal, lines elsewhere."""
    return Bars() if sys.stderr.isatty() else Lines()


def _brief(numbers: dict[str, float]) -> str:
    return one_line("  ".join(f"{name} {value:.3g}" for name, value in numbers.items()))
