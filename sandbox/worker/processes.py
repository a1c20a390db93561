"""Other processes as the kernel counts them: their time and memory, and a run's process group, which none can leave."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time

_TIMES = slice(11, 15)
"""Fields of /proc/PID/stat behind the name: CPU time of the process, and of its children that were waited for."""
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_clock_s(pid: int) -> float:
    """Return the CPU seconds of all threads of the process so far, 0 if it is gone."""
    try:  # the number of that process's CPU clock, see clock_getcpuclockid(3)
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def resident_mib(proc: int, pid: int) -> float:
    """Return the resident memory of the process, 0 if it is gone."""
    pages = read(proc, f"{pid}/statm").split()[1:2]
    return int(pages[0]) * resource.getpagesize() / (1 << 20) if pages else 0.0


def tree(proc: int, root: int) -> dict[int, float]:
    """Return the process, its descendants and its group, with the CPU seconds of each and of children it waited for."""
    parents, groups, seconds = dict[int, int](), dict[int, int](), dict[int, float]()
    for pid in (int(name) for name in os.listdir(proc) if name.isdecimal()) if proc >= 0 else ():
        if fields := fields_of(proc, pid):
            parents[pid], groups[pid] = int(fields[1]), int(fields[2])
            seconds[pid] = sum(map(int, fields[_TIMES])) / _TICKS
    inside = {pid for pid, group in groups.items() if pid == root or group == root}
    before = -1
    while len(inside) > before:
        before = len(inside)
        inside |= {pid for pid, parent in parents.items() if parent in inside}
    return {pid: seconds[pid] for pid in inside}


def threads(proc: int, pid: int) -> dict[int, tuple[float, float]]:
    """Return each thread of a process with the seconds it had a CPU and those it waited for one.

    Nothing where the kernel does not count them, or if the process is gone.
    """
    try:
        folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
    except OSError:
        return {}
    try:
        times = {int(task): read(folder, f"{task}/schedstat").split() for task in os.listdir(folder)}
    except OSError:
        return {}
    finally:
        os.close(folder)
    return {task: (int(words[0]) / 1e9, int(words[1]) / 1e9) for task, words in times.items() if len(words) > 1}


_STATE, _PARENT, _GROUP, _THREADS = 0, 1, 2, 17
"""Indices into the list that `fields_of` returns."""
_MAX_DEAD = 256
"""Orphans that may end between two counts."""


def num_threads_on_machine(proc: int) -> int:
    """Return the number of threads of the whole machine, 0 if /proc is not readable."""
    return int(read(proc, "loadavg").partition(b"/")[2].partition(b" ")[0] or 0)


def is_over(proc: int, leader: int, max_processes: int, threads_before: int) -> bool:
    """True if the leader's group has more than `max_processes` threads and processes.

    `threads_before`: the threads of the machine when the run began. Only if there are that many more now, the processes
    are read. The group is halted while it is counted: a fork bomb would grow faster than the count and take its CPU. A
    dead process counts until its own parent has waited for it; dead orphans do not count: `reap_orphans` removes them.
    """
    if proc < 0 or num_threads_on_machine(proc) - threads_before < max_processes:
        return False
    _signal(leader, signal.SIGSTOP)
    over = _is_over(proc, leader, max_processes)
    if not over:
        _signal(leader, signal.SIGCONT)
    return over


def _is_over(proc: int, leader: int, max_processes: int) -> bool:
    alive, dead, group, our_pid = 0, 0, str(leader).encode(), str(os.getpid()).encode()
    # The newest first: if there is a flood, they are its processes.
    for pid in sorted((int(name) for name in os.listdir(proc) if name.isdecimal()), reverse=True):
        fields = fields_of(proc, pid)
        if len(fields) <= _THREADS or fields[_GROUP] != group:
            continue
        if (fields[_STATE], fields[_PARENT]) == (b"Z", our_pid):
            dead += 1
        else:
            alive += max(1, int(fields[_THREADS]))
        if alive > max_processes or dead > _MAX_DEAD:
            return True
    return False


def reap_orphans(leader: int) -> None:
    """Wait for the group's dead processes that have become our children, except the leader itself."""
    with contextlib.suppress(ChildProcessError):
        for _ in range(_MAX_DEAD):
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
    """Kill the group of our child `leader`; return the child's status and usage once the whole group is gone.

    Orphans of the group must be adopted by us (PR_SET_CHILD_SUBREAPER).
    """
    kill(leader)
    _, status, usage = os.wait4(leader, 0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-leader, 0)
    return status, usage


def fields_of(proc: int, pid: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat behind the name, which may be any text; none if the process is gone."""
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
