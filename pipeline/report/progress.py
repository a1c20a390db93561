"""Show a run's progress: bars in a terminal or a notebook, else a line every few seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple, TextIO

from verizero.pipeline.shown import one_line

if TYPE_CHECKING:
    from rich.progress import TaskID

LINE_EVERY_S = 10.0
STEPS_SHARE = 0.7
"""Lines of steps come after this share of LINE_EVERY_S, so that no line without numbers comes just before them."""


class Progress:
    """Receives items, steps and numbers of a run. This one shows nothing of them."""

    def begin(self, what: str, done: int, total: int) -> None:
        """Begin an item of `total` steps, `done` of which are already made."""

    def advance(self, done: int, numbers: dict[str, float]) -> None:
        """Update the number of steps done, and the metrics that changed."""

    def under_way(self, what: str, done: int = 0, total: int = 0) -> None:
        """Update the present activity, and how many of `total` responses are done (0: nothing to count)."""

    def say(self, text: str) -> None:
        """Show one line that stays."""

    def close(self) -> None:
        """End the display."""


class _Activity(NamedTuple):
    """The present activity of a run: its start, and how many of its responses are done."""

    what: str
    since: float
    done: int = 0
    total: int = 0

    def line(self, now: float) -> str:
        """Return how far it is: the share of its responses and the seconds left, or the seconds so far."""
        seconds = now - self.since
        share = f", {100 * self.done // self.total}% of {self.total} responses" if self.total else ""
        if self.done == 0:
            return f"{self.what}{share}, {seconds:.0f} s"
        left = seconds / self.done * (self.total - self.done)
        return f"{self.what}{share}, about {left:.0f} s left"


class Lines(Progress):
    """Plain lines for logs and pipes: one every few seconds, and one at each end."""

    def __init__(
        self,
        out: TextIO | None = None,
        beats: bool = False,
        every_s: float = LINE_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`beats`: a thread writes what is under way after `every_s` seconds without a line, until `close`."""
        self.out, self.every_s, self.clock = out or sys.stderr, every_s, clock
        self.what, self.total, self.start = "", 0, clock()
        self.last = self.last_step = self.start
        """The moments of the last line, and of the last line of a step."""
        # No lock: a copy that a fork makes could hold it for ever. Each attribute is replaced as a whole.
        self._activity: _Activity | None = None
        self._closed = Event()
        self._thread = Thread(target=self._beats, name="progress", daemon=True) if beats else None
        if self._thread is not None:
            self._thread.start()

    def begin(self, what: str, done: int, total: int) -> None:
        """Say what begins."""
        self.what, self.total, self.last_step = what, total, self.clock()
        self._activity = _Activity(what, self.clock())
        if total > 1:
            self.say(f"{what}: {total} steps" + (f", {done} of them done before" if done else ""))

    def advance(self, done: int, numbers: dict[str, float]) -> None:
        """Say how far it is, not too often."""
        if done >= self.total or self.clock() - self.last_step >= STEPS_SHARE * self.every_s:
            self.last_step = self.clock()
            self.say(f"{self.what} {done}/{self.total}  {_brief(numbers)}".rstrip())

    def under_way(self, what: str, done: int = 0, total: int = 0) -> None:
        """Note what is under way, and say how many responses are done if no line came for a while."""
        before = self._activity
        since = before.since if before is not None and before.what == what and total else self.clock()
        self._activity = _Activity(what, since, done, total)
        if total:
            self.beat()

    def beat(self) -> None:
        """Say what is under way if no line came for a while: for 3 seconds at the start of a run, later for 10."""
        now, activity = self.clock(), self._activity
        silence = min(self.every_s, max(0.3 * self.every_s, (now - self.start) / 2))
        if activity is not None and now - self.last >= silence:
            self.say(activity.line(now))

    def say(self, text: str) -> None:
        """Print one line, with the seconds since the start."""
        self.last = self.clock()
        # One write, or the lines of two threads could mix.
        self.out.write(f"[{self.last - self.start:6.1f} s] {one_line(text)}\n")
        self.out.flush()

    def close(self) -> None:
        """End the thread: no line of its own comes after this."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _beats(self) -> None:
        while not self._closed.wait(self.every_s / 10):
            try:
                self.beat()
            except (OSError, ValueError):  # nobody reads the log any more; the run's own next line says so
                return


class Bars(Progress):
    """Live bars in a terminal or, by the package ipywidgets, in a notebook."""

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
        self.now: TaskID | None = None
        """The row of what is under way, the last of all."""
        self.now_what = ""

    def begin(self, what: str, done: int, total: int) -> None:
        """Add a bar; those before stay."""
        if self.now is not None:
            self.rich.remove_task(self.now)
            self.now = None
        self.task = self.rich.add_task(one_line(what), total=max(1, total), completed=done, numbers="")

    def advance(self, done: int, numbers: dict[str, float]) -> None:
        """Move the bar."""
        if self.task is not None:
            self.rich.update(self.task, completed=done, numbers=_brief(numbers))

    def under_way(self, what: str, done: int = 0, total: int = 0) -> None:
        """Show it in the last row, with the seconds since its begin and those that are left."""
        if self.now is None or what != self.now_what or not total:
            if self.now is not None:
                self.rich.remove_task(self.now)
            self.now_what, self.now = what, self.rich.add_task(one_line(what), total=total or None, numbers="")
        self.rich.update(self.now, total=total or None, completed=done)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.rich.console.print(one_line(text), markup=False, highlight=False, emoji=False)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.now is not None:
            self.rich.remove_task(self.now)
            self.now = None
        self.rich.refresh()  # in a notebook `stop` leaves the state of a moment before
        self.rich.stop()


class Logged(Progress):
    """Shows all on a display, and appends it as lines to a file. A disk that takes no line is no error of the run."""

    def __init__(self, shown: Progress, path: Path, name: str) -> None:
        """`name`: of the run, whose start is the first line."""
        self.shown, self._file = shown, path.open("a", encoding="utf-8", errors="replace")
        self.lines = Lines(self._file)
        with suppress(OSError):
            self.lines.say(f"{name} starts as process {os.getpid()} on {time.strftime('%Y-%m-%d at %H:%M:%S %z')}")

    def begin(self, what: str, done: int, total: int) -> None:
        """Begin an item on both."""
        with suppress(OSError):
            self.lines.begin(what, done, total)
        self.shown.begin(what, done, total)

    def advance(self, done: int, numbers: dict[str, float]) -> None:
        """Show the steps done on both."""
        with suppress(OSError):
            self.lines.advance(done, numbers)
        self.shown.advance(done, numbers)

    def under_way(self, what: str, done: int = 0, total: int = 0) -> None:
        """Show what is under way on the display; the file has what was done."""
        self.shown.under_way(what, done, total)

    def say(self, text: str) -> None:
        """Show one line on both."""
        with suppress(OSError):
            self.lines.say(text)
        self.shown.say(text)

    def close(self) -> None:
        """Close the file; the display belongs to its owner."""
        with suppress(OSError):
            self._file.close()


def for_terminal(beats: bool = True) -> Progress:
    """Bars where they can be drawn, lines elsewhere; their thread, if they have it, ends with `close`."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    is_notebook = getattr(shell, "kernel", None) is not None and find_spec("ipywidgets") is not None
    return Bars() if is_notebook or sys.stderr.isatty() else Lines(beats=beats)


def _brief(numbers: dict[str, float]) -> str:
    return one_line("  ".join(f"{name} {value:.3g}" for name, value in numbers.items()))
