"""The watch over a run, or one call of a session: its clocks and limits, read from outside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from . import clocks, frames, jail, process_flood

_CORES = len(os.sched_getaffinity(0))
_LOOK_EVERY_S = 0.05
_COUNT_EVERY_S = 0.005
"""Seconds between two counts of processes. A shell can double them within a millisecond, and a count is cheap."""
_PATIENCE = 20
"""Multiple of its wall limit that a process may take while other work keeps it from a CPU."""


class Allowed(NamedTuple):
    """The limits of a run or a call."""

    wall_s: float
    cpu_s: float
    memory_mib: int
    output_kib: int
    processes: int


class Watch:
    """A run or a call under way in process `pid`.

    `is_full` tells if its files are more than they may be. The size of `outputs` is watched where the kernel's limit of
    a file's size does not end the process, and the resident memory if `is_managed`: where an interpreter reserves more
    address space than it uses.
    """

    def __init__(
        self, pid: int, allowed: Allowed, cell: jail.Jail, is_full: Callable[[], bool], outputs: Sequence[int],
        is_managed: bool = False,
    ) -> None:  # fmt: skip
        self.pid, self.allowed, self.cell, self.is_full, self.outputs = pid, allowed, cell, is_full, outputs
        self.is_managed = is_managed
        self.start = self.looked = time.monotonic()
        self.waited = clocks.cpu_wait(cell.proc, pid) or 0.0
        self.cpu = clocks.cpu_clock(pid)
        self.deadline = self.start + allowed.wall_s
        self.why = frames.ENDED
        """The limit that was reached."""
        self.before = process_flood.total(cell.proc) if cell.floods else 0
        self.often = _LOOK_EVERY_S if outputs or not cell.has_namespaces else allowed.wall_s
        self.often = _COUNT_EVERY_S if cell.floods else self.often
        self.due = min(self.deadline, self.start + allowed.cpu_s / _CORES, self.start + self.often)

    def used(self) -> float:
        """Return the CPU seconds so far."""
        return clocks.cpu_clock(self.pid) - self.cpu

    def look(self) -> bool:
        """Kill the process if it has reached a limit, else set `due`, the time of the next look. True if killed."""
        now, used = time.monotonic(), self.used()
        self.why = self._reached(now, used)
        if self.why != frames.ENDED:
            os.kill(self.pid, signal.SIGKILL)
            self.due = float("inf")  # its death is heard soon
            return True
        self.due = now + min(self.deadline - now, max(0.005, (self.allowed.cpu_s - used) / _CORES), self.often)
        return False

    def _reached(self, now: float, used: float) -> int:
        """Return the limit that is reached, ENDED for none."""
        if self.cell.floods:
            process_flood.bury(self.pid)  # the kernel counts the dead too
        is_due = now >= self.looked + _LOOK_EVERY_S
        self.looked = now if is_due else self.looked
        if used >= self.allowed.cpu_s:
            return frames.CPU
        if now >= self.deadline:
            self.deadline = self._later(now, used)
            if self.deadline <= now:
                return frames.WALL
        if self._has_too_many():
            return frames.PROCESSES
        if is_due and self.is_full():
            return frames.DISK
        if self.is_managed and clocks.resident_mib(self.cell.proc, self.pid) > self.allowed.memory_mib:
            return frames.MEMORY
        if any(os.fstat(fd).st_size > self.allowed.output_kib << 10 for fd in self.outputs):
            return frames.OUTPUT
        return frames.ENDED

    def _has_too_many(self) -> bool:
        """True if there are more processes or threads than allowed, where no kernel's count bounds them."""
        if self.cell.worker_counts:
            return process_flood.is_over(self.cell.proc, self.pid, self.allowed.processes, self.before)
        if self.cell.has_namespaces or not self.cell.sessions:
            return False
        try:
            return len(os.listdir(f"/proc/{self.pid}/task")) > self.allowed.processes
        except OSError:
            return False

    def _later(self, now: float, used: float) -> float:
        """Return the time at which the process will have had its wall time, without its waits for a busy CPU."""
        wait = clocks.cpu_wait(self.cell.proc, self.pid)
        if wait is None:  # without /proc, a process that got some CPU is taken to have wanted more
            waited = (now - self.start - used) * 0.8 if used > 0.05 * (now - self.start) else 0.0
        else:
            waited = max(0.0, wait - self.waited)
        limit = self.allowed.wall_s
        return min(now + limit - (now - self.start - waited), self.start + _PATIENCE * limit)
