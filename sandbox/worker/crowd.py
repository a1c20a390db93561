"""All processes that one run has started, where no process namespace holds them: their group, which none can leave."""

from __future__ import annotations

import contextlib
import os
import signal

_GROUP, _THREADS = 2, 17
"""Places in /proc/PID/stat behind the name, which may hold anything."""


def total(proc: int) -> int:
    """Threads of the whole machine, all processes together; 0 where /proc does not say."""
    return int(_read(proc, "loadavg").partition(b"/")[2].partition(b" ")[0] or 0)


def is_over(proc: int, leader: int, most: int, before: int) -> bool:
    """The leader's group has more than `most` threads and processes. `before`: `total` when it had one.

    The group is looked through only when the machine has so many more than before.
    """
    if proc < 0 or total(proc) - before < most:
        return False
    found, group = 0, str(leader).encode()
    for name in os.listdir(proc):
        if name.isdecimal():
            fields = _read(proc, f"{name}/stat").rpartition(b")")[2].split()
            if len(fields) > _THREADS and fields[_GROUP] == group:
                found += int(fields[_THREADS])
                if found > most:
                    return True
    return False


def kill(leader: int) -> None:
    """Send the whole group the signal that none survives; the kernel lets none of it fork meanwhile."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def wait(leader: int) -> None:
    """Until none of a killed group is left. Its orphans must become ours."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-leader, 0)


def _read(proc: int, path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY, dir_fd=proc)
    except OSError:
        return b""
    try:
        return os.read(fd, 1024)
    except OSError:
        return b""
    finally:
        os.close(fd)
