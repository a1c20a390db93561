"""The control group of a worker's runs: the forker enters it, and the worker sets its limits before each run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

_SLACK_MIB = 48
"""Memory for the forker's own pages and for the kernel's records of processes."""


class CGroup:
    """A control group by its open files, so that it can be used where its folder is not visible."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        memory, pids = folders["memory"], folders["pids"]
        is_version_2 = os.path.exists(f"{memory}/memory.max")
        self.entries = [os.open(f"{folder}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in {memory, pids}]
        name = "memory.max" if is_version_2 else "memory.limit_in_bytes"
        self.memory = os.open(f"{memory}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        self.events = os.open(
            f"{memory}/{'memory.events' if is_version_2 else 'memory.oom_control'}", os.O_RDONLY | os.O_CLOEXEC
        )
        failures = f"{memory}/{'memory.events' if is_version_2 else 'memory.failcnt'}"
        self.failures = os.open(failures, os.O_RDONLY | os.O_CLOEXEC)
        self.pids = os.open(f"{pids}/pids.max", os.O_WRONLY | os.O_CLOEXEC)
        self.bounds: tuple[int, int] | None = None
        self.num_kills = self.num_failures = 0
        for file, value in (("memory.swap.max", b"0"), ("memory.oom.group", b"0"), ("memory.swappiness", b"0")):
            with contextlib.suppress(OSError):
                fd = os.open(f"{memory}/{file}", os.O_WRONLY)
                os.write(fd, value)
                os.close(fd)

    def enter(self) -> None:
        """Put the calling process into the group. Raises: OSError."""
        for fd in self.entries:
            os.write(fd, b"0")

    def bound(self, memory_mib: int, disk_mib: int, output_kib: int, processes: int) -> None:
        """Set the bounds of the next run; its files in memory and its output count too. Raises: OSError."""
        bounds = ((memory_mib + disk_mib + (output_kib >> 8) + _SLACK_MIB) << 20, processes + 1)
        if bounds != self.bounds:
            os.write(self.memory, str(bounds[0]).encode())
            os.write(self.pids, str(bounds[1]).encode())
            self.bounds = bounds

    def has_new_kills(self) -> bool:
        """True if the kernel has killed a process for the group's own bound on memory since the last call.

        The kernel also counts kills for other bounds, as that of the machine or of a pod. Those are not the program's
        fault, and the group has then not reached its own bound.
        """
        kills, failures = _count(self.events, b"oom_kill"), _count(self.failures, b"oom")
        is_new = kills > self.num_kills and failures > self.num_failures
        self.num_kills, self.num_failures = kills, failures
        return is_new


def _count(fd: int, name: bytes) -> int:
    """Return the number after `name` in a file of the kernel, or the only number of the file; 0 without it."""
    words = os.pread(fd, 4096, 0).split()
    if len(words) == 1:
        return int(words[0])
    return int(words[words.index(name) + 1]) if name in words else 0
