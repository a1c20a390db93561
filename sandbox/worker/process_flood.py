"""All processes that one run has started, where no process namespace holds them: their group, which none can leave."""

from __future__ import annotations

import contextlib
import os
import signal

_STATE, _PARENT, _GROUP, _THREADS = 0, 1, 2, 17
"""Places in /proc/PID/stat behind the name, which may hold anything."""
_BURIED = 256
"""Orphans that may end between two looks."""


def total(proc: int) -> int:
    """Threads of the whole machine, all processes together; 0 where /proc does not say."""
    return int(_read(proc, "loadavg").partition(b"/")[2].partition(b" ")[0] or 0)


def is_over(proc: int, leader: int, most: int, before: int) -> bool:
    """The leader's group has more than `most` threads and processes. `before`: `total` when it had one.

    Processes are looked through only when the machine has so many more than before. The group is halted meanwhile: a
    flood outgrows whoever counts it, and leaves him no CPU to go on. The dead that their own parent has left lying
    count; orphans are ours, and `bury` takes them away.
    """
    if proc < 0 or total(proc) - before < most:
        return False
    _signal(leader, signal.SIGSTOP)
    over = _is_over(proc, leader, most)
    if not over:
        _signal(leader, signal.SIGCONT)
    return over


def _is_over(proc: int, leader: int, most: int) -> bool:
    """The newest are looked at first: where there is a flood, it is they."""
    found, dead, group, us = 0, 0, str(leader).encode(), str(os.getpid()).encode()
    for pid in sorted((int(name) for name in os.listdir(proc) if name.isdecimal()), reverse=True):
        fields = _read(proc, f"{pid}/stat").rpartition(b")")[2].split()
        if len(fields) <= _THREADS or fields[_GROUP] != group:
            continue
        if (fields[_STATE], fields[_PARENT]) == (b"Z", us):
            dead += 1
        else:
            found += max(1, int(fields[_THREADS]))
        if found > most or dead > _BURIED:
            return True
    return False


def bury(leader: int) -> None:
    """Take away those of the group that have ended and are our children, but for the leader itself."""
    with contextlib.suppress(ChildProcessError):
        for _ in range(_BURIED):
            dead = os.waitid(os.P_PGID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if dead is None or dead.si_pid == leader:
                return
            os.waitpid(dead.si_pid, 0)


def kill(leader: int) -> None:
    """Send the whole group the signal that none survives; the kernel lets none of it fork meanwhile."""
    _signal(leader, signal.SIGKILL)


def _signal(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


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
