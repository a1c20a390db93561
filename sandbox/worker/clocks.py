"""The time and the memory of another process, as the kernel counts them."""

from __future__ import annotations

import os
import resource
import time

from . import process_group


def cpu_clock_s(pid: int) -> float:
    """Return the CPU seconds of all threads of the process so far, 0 if it is gone."""
    try:  # the number of that process's CPU clock, see clock_getcpuclockid(3)
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def resident_mib(proc: int, pid: int) -> float:
    """Return the resident memory of the process, 0 if it is gone."""
    pages = process_group.read(proc, f"{pid}/statm").split()[1:2]
    return int(pages[0]) * resource.getpagesize() / (1 << 20) if pages else 0.0


def cpu_wait_s(proc: int, pid: int) -> float | None:
    """Return the seconds that the process's threads waited for a CPU; None where the kernel does not count them."""
    try:
        folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
    except OSError:
        return None
    try:
        waits = [process_group.read(folder, f"{task}/schedstat").split()[1] for task in os.listdir(folder)]
    except (OSError, IndexError):
        return None
    finally:
        os.close(folder)
    return sum(map(int, waits)) / 1e9
