"""Watch a run, or one call of a session, from outside: kill it when it reaches a limit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from . import clocks, frames, process_group, walls

_CORES = len(os.sched_getaffinity(0))
_LOOK_EVERY_S = 0.05
_COUNT_EVERY_S = 0.005
"""Seconds between two counts of processes. A shell can double them within a millisecond, and a count is cheap."""
_PATIENCE = 20
"""Multiple of its wall limit after which a process is killed, even if it waited for a busy CPU all the time."""


class RunLimits(NamedTuple):
    """The limits of a run or a call."""

    wall_s: float
    cpu_s: float
    memory_mib: int
    output_kib: int
    processes: int


class Watch:
    """The watch over a run or a call in process `pid`.

    `is_full()`: True if its files are larger than they may be. `outputs`: files whose size is checked here, because
    RLIMIT_FSIZE would not kill the process. `is_jit_runtime`: check the resident memory, because the program reserves
    far more address space than it uses.
    """

    def __init__(
        self, pid: int, limits: RunLimits, jail: walls.Jail, is_full: Callable[[], bool], outputs: Sequence[int],
        is_jit_runtime: bool = False,
    ) -> None:  # fmt: skip
        self.pid, self.limits, self.jail, self.is_full, self.outputs = pid, limits, jail, is_full, outputs
        self.is_jit_runtime = is_jit_runtime
        self.start = self.last_look = time.monotonic()
        self.waited_before_s = clocks.cpu_wait_s(jail.proc, pid) or 0.0
        self.cpu_before_s = clocks.cpu_clock_s(pid)
        self.deadline = self.start + limits.wall_s
        self.why = frames.ENDED
        """The limit that was reached."""
        self.threads_before = process_group.num_threads_on_machine(jail.proc) if jail.processes_may_remain else 0
        self.interval_s = _LOOK_EVERY_S if outputs or not jail.has_namespaces else limits.wall_s
        if jail.processes_may_remain:
            self.interval_s = _COUNT_EVERY_S
        self.next_look = min(self.deadline, self.start + limits.cpu_s / _CORES, self.start + self.interval_s)

    def used(self) -> float:
        """Return the CPU seconds so far."""
        return clocks.cpu_clock_s(self.pid) - self.cpu_before_s

    def wait_for(self, other: Watch, extra_s: float) -> None:
        """Let this process run for `extra_s` longer than the other, whose deadline a busy CPU may move."""
        self.deadline = max(self.deadline, other.deadline + extra_s)

    def look(self) -> bool:
        """Kill the process and return True if it has reached a limit. Else set `next_look`, a time."""
        now, used = time.monotonic(), self.used()
        self.why = self._reached(now, used)
        if self.why != frames.ENDED:
            os.kill(self.pid, signal.SIGKILL)
            self.next_look = float("inf")  # its pidfd will soon be readable
            return True
        self.next_look = now + min(
            self.deadline - now, max(0.005, (self.limits.cpu_s - used) / _CORES), self.interval_s
        )
        return False

    def _reached(self, now: float, used: float) -> int:
        """Return the limit that is reached, ENDED for none."""
        if self.jail.processes_may_remain:
            process_group.reap_orphans(self.pid)  # dead processes count for RLIMIT_NPROC
        looks_at_files = now >= self.last_look + _LOOK_EVERY_S
        self.last_look = now if looks_at_files else self.last_look
        if used >= self.limits.cpu_s:
            return frames.CPU
        if now >= self.deadline:
            self.deadline = self._extended_deadline(now, used)
            if self.deadline <= now:
                return frames.WALL
        if self._has_too_many():
            return frames.PROCESSES
        if looks_at_files and self.is_full():
            return frames.DISK
        if self.is_jit_runtime and clocks.resident_mib(self.jail.proc, self.pid) > self.limits.memory_mib:
            return frames.MEMORY
        if any(os.fstat(fd).st_size > self.limits.output_kib << 10 for fd in self.outputs):
            return frames.OUTPUT
        return frames.ENDED

    def _has_too_many(self) -> bool:
        """True if there are more processes or threads than allowed. False if the kernel already limits them."""
        if self.jail.worker_must_count_processes:
            return process_group.is_over(self.jail.proc, self.pid, self.limits.processes, self.threads_before)
        if self.jail.has_namespaces or not self.jail.has_sessions:
            return False
        try:
            return len(os.listdir(f"/proc/{self.pid}/task")) > self.limits.processes
        except OSError:
            return False

    def _extended_deadline(self, now: float, used: float) -> float:
        """Return the deadline, later by the seconds in which the process waited for a busy CPU."""
        wait = clocks.cpu_wait_s(self.jail.proc, self.pid)
        if wait is None:  # no /proc: if the process got some CPU, assume that it waited for more
            waited = (now - self.start - used) * 0.8 if used > 0.05 * (now - self.start) else 0.0
        else:
            waited = max(0.0, wait - self.waited_before_s)
        limit = self.limits.wall_s
        return min(now + limit - (now - self.start - waited), self.start + _PATIENCE * limit)
