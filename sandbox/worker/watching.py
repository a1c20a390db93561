"""The watch over one call of a session: its clocks and limits, read from outside."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from . import clocks, frames, jail, process_flood
from .rooms import Room

_CORES = len(os.sched_getaffinity(0))
_LOOK_EVERY_S = 0.05
_COUNT_EVERY_S = 0.005
_PATIENCE = 20
"""Multiple of its wall limit that a call may take while other work keeps it from a CPU."""


class Allowed(NamedTuple):
    """The limits of one call."""

    wall_s: float
    cpu_s: float
    memory_mib: int
    output_kib: int
    processes: int


class Watch:
    """One call under way in process `pid`."""

    def __init__(self, pid: int, allowed: Allowed, cell: jail.Jail, room: Room, outputs: tuple[int, int]) -> None:
        self.pid, self.allowed, self.cell, self.room, self.outputs = pid, allowed, cell, room, outputs
        self.start = self.looked = time.monotonic()
        self.waited = clocks.cpu_wait(cell.proc, pid) or 0.0
        self.cpu = clocks.cpu_clock(pid)
        self.deadline = self.start + allowed.wall_s
        self.why = frames.ENDED
        """The limit for which the process was killed."""
        self.forks = bool(cell.tools)
        self.floods = self.forks and not cell.has_namespaces
        self.before = process_flood.total(cell.proc) if self.floods else 0
        self.often = _COUNT_EVERY_S if self.floods else _LOOK_EVERY_S
        self.due = min(self.deadline, self.start + allowed.cpu_s / _CORES, self.start + self.often)

    def used(self) -> float:
        """Return the CPU seconds of this call so far."""
        return clocks.cpu_clock(self.pid) - self.cpu

    def look(self, now: float) -> int:
        """Return the limit that the call has reached, ENDED for none, and set `due`, the time of the next look."""
        used = self.used()
        if self.floods:
            process_flood.bury(self.pid)
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
        if is_due and self.room.is_over():
            return frames.DISK
        # An interpreter is told by its own limit of a file's size; processes of a shell might write for ever.
        if self.forks and any(os.fstat(fd).st_size > self.allowed.output_kib << 10 for fd in self.outputs):
            return frames.OUTPUT
        self.due = now + min(self.deadline - now, max(0.005, (self.allowed.cpu_s - used) / _CORES), self.often)
        return frames.ENDED

    def _has_too_many(self) -> bool:
        """True if the call has more processes or threads than it may, where no kernel's count bounds it."""
        if self.cell.has_namespaces:
            return False
        if self.forks:
            return process_flood.is_over(self.cell.proc, self.pid, self.allowed.processes, self.before)
        try:
            return len(os.listdir(f"/proc/{self.pid}/task")) > self.allowed.processes
        except OSError:
            return False

    def _later(self, now: float, used: float) -> float:
        """Return the time at which the call will have had its wall time, without its waits for a busy CPU."""
        wait = clocks.cpu_wait(self.cell.proc, self.pid)
        if wait is None:  # without /proc, a call that got some CPU is taken to have wanted more
            waited = (now - self.start - used) * 0.8 if used > 0.05 * (now - self.start) else 0.0
        else:
            waited = max(0.0, wait - self.waited)
        limit = self.allowed.wall_s
        return min(now + limit - (now - self.start - waited), self.start + _PATIENCE * limit)
