"""The recorder of a run: what it writes, shows and measures while it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from verizero.pipeline.report.measures import DevicePeaks, Work
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.report.row_types import RolloutRow
from verizero.pipeline.report.store import Store
from verizero.pipeline.report.trackers.base import Trackers
from verizero.pipeline.rollout.generate import Count
from verizero.pipeline.run.callbacks import Callbacks
from verizero.pipeline.train.deadline import WATCH

Listener = Callable[[str, dict[str, Any]], None]
"""Receives the name of an event (`verizero.round.completed` …) and its fields as plain values."""


class Recorder:
    """Writes metrics and samples, shows progress, measures phases and tells listeners of events."""

    def __init__(
        self,
        store: Store,
        trackers: Trackers,
        progress: Progress | None = None,
        peaks: DevicePeaks | None = None,
        peak_flops: float | None = None,
    ) -> None:
        """`peaks`: of this rank's GPU. `peak_flops`: operations a second of all ranks' GPUs. None on the CPU."""
        self.store, self.trackers = store, trackers
        self.work = Work(peak_flops)
        self._peaks = peaks
        self.progress: Progress = progress or Progress()
        self.listener: Listener = lambda name, fields: None
        self.callbacks = Callbacks()
        self.step_label = ""
        """The present step in words, e.g. "round 1 step 7"."""
        self._under_way = ""
        self.reported: set[str] = set()
        """Causes and warnings of the diagnosis that were shown."""
        self._times: dict[str, float] = {}

    def say(self, text: str) -> None:
        """Show one line that stays."""
        self.progress.say(text)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the block's seconds to `phase`, and the GPU's peak in it, and start the deadline of that phase."""
        # The launcher quotes this phase if the rank dies in it.
        WATCH.begins(f"{self.step_label}: {phase}")
        if phase != "total":  # of a step, whose phases are shown
            self._show(f"{self.step_label}: {phase.rpartition('/')[2]}")
        if self._peaks is not None:
            self._peaks.enter(phase)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_seconds(phase, time.perf_counter() - start)
            if self._peaks is not None:
                self._peaks.leave(phase)
            self._show(self.step_label)

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add seconds to `phase`. Phases whose names end in "graders" ran in parallel to others, not after them."""
        self._times[phase] = self._times.get(phase, 0.0) + seconds

    def counter(self, total: int) -> Count:
        """Return a function that shows how many of this rank's `total` responses in the present phase are done."""
        what, done = self._under_way, 0

        def count(num: int) -> None:
            nonlocal done
            done += num
            self.progress.under_way(what, done, total)

        return count

    def _show(self, what: str) -> None:
        self._under_way = what
        self.progress.under_way(what)

    def take_times(self) -> dict[str, float]:
        """Return the seconds of each phase since the last call."""
        times, self._times = self._times, {}
        return {k: round(v, 4) for k, v in times.items()}

    def take_measures(self) -> dict[str, Any]:
        """Return the fields of a step's row that measure the machine, since the last call: time, speed and memory."""
        seconds = self.take_times()
        memory = None if self._peaks is None else self._peaks.take()
        return {"time": seconds, "speed": self.work.take(seconds) or None, "memory": memory}

    def track(self, numbers: Mapping[str, float], step: int) -> None:
        """Send numbers to the recipe's trackers. A tracker that fails is reported and does not end the run."""
        self.trackers.log(numbers, step)
        self._say_failures()

    def track_samples(self, name: str, rows: Sequence[RolloutRow], step: int) -> None:
        """Send some samples to the recipe's trackers, as a table that is called `name`."""
        shown = [[r.domain, r.prompt, r.response, r.reward, r.status, r.reason] for r in rows]
        self.trackers.table(name, shown, step)
        self._say_failures()

    def _say_failures(self) -> None:
        while self.trackers.failures:
            self.say(self.trackers.failures.pop())

    def close(self) -> None:
        """Close the files and the trackers."""
        self.store.close()
        self.trackers.close()
