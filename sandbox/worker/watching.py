"""Watch a run, or one call of a session, from outside: kill it when it reaches a limit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from . import frames, processes, walls

_CORES = len(os.sched_getaffinity(0))
_LOOK_EVERY_S = 0.05
_COUNT_EVERY_S = 0.005
"""Seconds between two counts of processes. A shell can double them within a millisecond, and a count is cheap."""
_PATIENCE = 20
"""Multiple of its wall limit after which a process is killed, even if it waited for a busy CPU all the time."""
_PATIENCE_WITH_OTHERS = 2
"""The same for a run of several processes, or of threads of which none did most of the work."""


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
        self, pid: int, limits: RunLimits | frames.Order, jail: walls.Jail, is_full: Callable[[], bool],
        outputs: Sequence[int], is_jit_runtime: bool = False,
    ) -> None:  # fmt: skip
        self.pid, self.limits, self.jail, self.is_full, self.outputs = pid, limits, jail, is_full, outputs
        self.is_jit_runtime = is_jit_runtime
        self.start = self.last_look = time.monotonic()
        self.threads_at_start = processes.threads(jail.proc, pid)
        self.cpu_before_s = processes.cpu_clock_s(pid)
        self.used_s = 0.0
        """The CPU seconds of all its processes when they were last counted."""
        self.next_count = self.start + limits.cpu_s / _CORES if jail.tools else float("inf")
        """The time when its processes are counted again: the first at which they can have reached their limit."""
        self.deadline = self.start + limits.wall_s
        self.why = frames.ENDED
        """The limit that was reached."""
        self.threads_before = processes.num_threads_on_machine(jail.proc) if jail.processes_may_remain else 0
        self.interval_s = _LOOK_EVERY_S if outputs or not jail.has_namespaces else limits.wall_s
        if jail.processes_may_remain:
            self.interval_s = _COUNT_EVERY_S
        self.next_look = min(self.deadline, self.start + limits.cpu_s / _CORES, self.start + self.interval_s)

    def used(self) -> float:
        """Return the CPU seconds so far."""
        now, own = time.monotonic(), processes.cpu_clock_s(self.pid)
        if now >= self.next_count:
            own = max(own, sum(processes.tree(self.jail.proc, self.pid).values()))
        self.used_s = max(self.used_s, own - self.cpu_before_s)
        if now >= self.next_count:
            self.next_count = now + max(_LOOK_EVERY_S, (self.limits.cpu_s - self.used_s) / _CORES)
        return self.used_s

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
            processes.reap_orphans(self.pid)  # dead processes count for RLIMIT_NPROC
        looks_at_files = now >= self.last_look + _LOOK_EVERY_S
        self.last_look = now if looks_at_files else self.last_look
        if used >= self.limits.cpu_s:
            return frames.CPU
        if now >= self.deadline:
            self.deadline = self._extended_deadline(used)
            if self.deadline <= now:
                return frames.WALL
        if self._has_too_many():
            return frames.PROCESSES
        if looks_at_files and self.is_full():
            return frames.DISK
        if self.is_jit_runtime and processes.resident_mib(self.jail.proc, self.pid) > self.limits.memory_mib:
            return frames.MEMORY
        if any(os.fstat(fd).st_size > self.limits.output_kib << 10 for fd in self.outputs):
            return frames.OUTPUT
        return frames.ENDED

    def _has_too_many(self) -> bool:
        """True if there are more processes or threads than allowed. False if the kernel already limits them."""
        if self.jail.worker_must_count_processes:
            return processes.is_over(self.jail.proc, self.pid, self.limits.processes, self.threads_before)
        if self.jail.has_namespaces or not self.jail.has_sessions:
            return False
        try:
            return len(os.listdir(f"/proc/{self.pid}/task")) > self.limits.processes
        except OSError:
            return False

    def _extended_deadline(self, used: float) -> float:
        """Return the deadline, later by the seconds in which the run waited for a CPU that other work used."""
        pids = processes.tree(self.jail.proc, self.pid) if self.jail.tools else [self.pid]
        threads = []
        for pid in pids:
            for task, (cpu, wait) in processes.threads(self.jail.proc, pid).items():
                cpu_before, wait_before = self.threads_at_start.get(task, (0.0, 0.0))
                threads.append((cpu - cpu_before, wait - wait_before))
        return self.start + allowed_wall_s(self.limits.wall_s, used, len(pids), threads, _CORES)


def allowed_wall_s(
    limit: float, used: float, num_processes: int, threads: Sequence[tuple[float, float]], cores: int
) -> float:
    """Return the seconds that a run may last which has used that many CPU seconds, by what its threads got and waited.

    It is the limit, and the wait of the thread that waited most, without the time that the run's other threads had on
    the CPUs. No threads: the kernel counts none; a run that got some CPU may have waited for more.
    """
    if not threads:
        return limit * (_PATIENCE_WITH_OTHERS if used > 0.05 * limit else 1)
    waited = max(0.0, *(wait - max(0.0, used - own) / cores for own, wait in threads))
    is_of_one = num_processes == 1 and max(own for own, _ in threads) >= used / 2
    return min(limit + waited, limit * (_PATIENCE if is_of_one else _PATIENCE_WITH_OTHERS))
