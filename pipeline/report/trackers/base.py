"""The protocol of trackers, and all trackers of a run as one.

A tracker is imported when it is opened, never before. It must not slow a step or end a run: TensorBoard's writer only
queues (a thread of its own writes), and a service that fails later is reported once and left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from verizero.pipeline import registry
from verizero.pipeline.errors import ConfigError

COLUMNS = ("domain", "prompt", "response", "reward", "verdict", "reason")
"""The columns of a table of samples."""
MOST_SAMPLES = 32
"""Rows of the table that follows an evaluation."""
MOST_CHARACTERS = 4000
"""Characters of a text in a table; rollouts.jsonl has all of them."""
Table = Sequence[Sequence[str | float | None]]
"""Rows of `COLUMNS`."""


class Tracker(Protocol):
    """Takes one row of metrics at a time, and if it has a method `table(name, rows, step)`, samples of evaluations."""

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Record `row`, finite numbers by name, at `step`."""
        ...

    def close(self) -> None:
        """Write all that was logged, and close."""
        ...


Opener = Callable[[Path, str, Mapping[str, Any]], Tracker]
"""(folder of the run, its name, its recipe) -> the tracker."""


def find_opener(name: str) -> Opener:
    """Return what opens the tracker of that name or path ("my_tracker.py:MyTracker").

    A file of this folder, and a module that an entry point of `verizero.trackers` names, has a class `Tracker`.
    Raises: UnknownName, ConfigError.
    """
    if ".py:" in name:
        plugin, _ = registry.at_path(name, None, "tracker")
    else:
        plugin = registry.find("trackers", name)
    opener = getattr(plugin, "Tracker", None) if isinstance(plugin, ModuleType) else plugin
    if not callable(opener):
        raise ConfigError(
            f"report.trackers: {name!r} has no class Tracker(run_dir, run_name, recipe) with log(row, step) and close()"
        )
    return opener  # type: ignore[no-any-return]


class Trackers:
    """The named trackers as one, opened for the run in `run_dir`.

    A tracker that fails during the run is dropped, and `failures` says which and why: metrics.jsonl has every step.

    Raises: ConfigError for an unknown name, or one that is not installed, with the command that installs it.
    """

    def __init__(
        self, names: Sequence[str], run_dir: Path, run_name: str, recipe: Mapping[str, Any] | None = None
    ) -> None:
        self.failures: list[str] = []
        self._open: dict[str, Tracker] = {}
        try:
            for name in dict.fromkeys(names):
                self._open[name] = find_opener(name)(Path(run_dir), run_name, dict(recipe or {}))
        except Exception:
            self.close()
            raise

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Record `row` at `step` in each; what is not a finite number is left out."""
        # Not every service takes NaN.
        finite = {k: float(v) for k, v in row.items() if isinstance(v, int | float) and math.isfinite(v)}
        self._each(lambda tracker: tracker.log(finite, step))

    def table(self, name: str, rows: Table, step: int) -> None:
        """Show the first samples, rows of `COLUMNS`, under `name` in each that has tables; long texts are cut."""
        short = [[v[:MOST_CHARACTERS] if isinstance(v, str) else v for v in row] for row in rows[:MOST_SAMPLES]]
        if short:
            self._each(lambda tracker: tracker.table(name, short, step) if hasattr(tracker, "table") else None)

    def close(self) -> None:
        """Write what is queued and close each. Closing again does nothing."""
        self._each(lambda tracker: tracker.close())
        self._open.clear()

    def _each(self, call: Callable[[Any], object]) -> None:
        for name, tracker in list(self._open.items()):
            try:
                call(tracker)
            except Exception as exc:
                del self._open[name]
                self.failures.append(
                    f"tracker {name} stopped at {type(exc).__name__}: {exc}; metrics.jsonl holds every step"
                )


def required(name: str, requirement: str, module: str | None = None) -> ModuleType:
    """Return a service's module, by default of the tracker's name. Raises: ConfigError with how to install it."""
    try:
        return import_module(module or name)
    except ImportError as exc:
        raise ConfigError(
            f"report.trackers names {name!r}, which is not installed ({exc}); run `pip install '{requirement}'`, or "
            "take it off the list"
        ) from exc
