"""The processes of one run where no process namespace holds them: a process group, which none of them can leave."""

from __future__ import annotations

import contextlib
import os
import resource
import signal

_STATE, _PARENT, _GROUP, _THREADS = 0, 1, 2, 17
"""Places in what `fields_of` returns."""
_MOST_DEAD = 256
"""Orphans that may end between two counts."""


def total(proc: int) -> int:
    """Return the number of threads of the whole machine, 0 if /proc is not readable."""
    return int(read(proc, "loadavg").partition(b"/")[2].partition(b" ")[0] or 0)


def is_over(proc: int, leader: int, most: int, before: int) -> bool:
    """True if the leader's group has more than `most` threads and processes. `before` is `total` at its start.

    The processes are read only when the machine has so many more than before. The group is halted while it is counted,
    because a flood would outgrow the count and leave no CPU for it. Dead processes count as long as their own parent
    has not waited for them; dead orphans do not, since `bury` removes them.
    """
    if proc < 0 or total(proc) - before < most:
        return False
    _signal(leader, signal.SIGSTOP)
    over = _is_over(proc, leader, most)
    if not over:
        _signal(leader, signal.SIGCONT)
    return over


def _is_over(proc: int, leader: int, most: int) -> bool:
    alive, dead, group, us = 0, 0, str(leader).encode(), str(os.getpid()).encode()
    # The newest first: if there is a flood, they are its processes.
    for pid in sorted((int(name) for name in os.listdir(proc) if name.isdecimal()), reverse=True):
        fields = fields_of(proc, pid)
        if len(fields) <= _THREADS or fields[_GROUP] != group:
            continue
        if (fields[_STATE], fields[_PARENT]) == (b"Z", us):
            dead += 1
        else:
            alive += max(1, int(fields[_THREADS]))
        if alive > most or dead > _MOST_DEAD:
            return True
    return False


def bury(leader: int) -> None:
    """Wait for the dead of the group that are our children, except the leader itself."""
    with contextlib.suppress(ChildProcessError):
        for _ in range(_MOST_DEAD):
            dead = os.waitid(os.P_PGID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if dead is None or dead.si_pid == leader:
                return
            os.waitpid(dead.si_pid, 0)


def kill(leader: int) -> None:
    """Kill the whole group with one signal: the kernel lets none of it fork meanwhile."""
    _signal(leader, signal.SIGKILL)


def _signal(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def end(leader: int) -> tuple[int, resource.struct_rusage]:
    """Kill the group of a child of ours; return the child's status and usage once nothing of the group is left.

    Its orphans must become our children.
    """
    kill(leader)
    _, status, usage = os.wait4(leader, 0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-leader, 0)
    return status, usage


def fields_of(proc: int, pid: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat behind the name, which may hold any text; none if the process is gone."""
    return read(proc, f"{pid}/stat").rpartition(b")")[2].split()


def read(proc: int, path: str) -> bytes:
    """Return the beginning of a file below an open /proc; nothing if the process is gone."""
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
