"""The forker: a warm interpreter behind all the walls that can be put up once, which makes one child per order.

The child is made ahead, when the one before is dead, and waits for its order with what walls can be up by then.

A child copies every page that it, or the forker, writes to while both live, and taking a reference is a write. So what
runs between clone and the program calls prepared objects and looks up as few names as it can; the program's own pages
then are most of what a run costs. Waiting, watching and mounting are the worker's affair, which shares no page with it.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import sys
from functools import partial
from posix import _exit, chdir, closerange, lseek, pread, read, write

from . import frames, harness, huge_pages, jail, kernel, memory, native, selftest, streams

_PACKET = 64
_BEHIND = 10
"""Runs whose processes only the worker bounds come after it, however many they are: else it would see them too late."""
_GO, _GO_AFRESH = b"1", b"2"
_LAST_OF_PYTHON = max(frames.STDIN, frames.FUNCTION)
# A call of one of these takes no reference to what it calls: only the page that they lie on together is copied.
_read, _write, _pread, _lseek = partial(read), partial(write), partial(pread), partial(lseek)
_closerange = partial(closerange)
_unpack, _unpack_payload, _pack = partial(frames.ORDER.unpack), partial(frames.unpack_payload), partial(frames.PID.pack)


class Forker:
    """The worker's end of it: one child waits at any time, and the next is made when the worker says so."""

    def __init__(self, orders: int, calls: int, pids: int, unread: int) -> None:
        self.orders, self.calls, self.pids, self.unread = orders, calls, pids, unread
        self.reports = select.poll()
        self.reports.register(pids, select.POLLIN)
        self.stale = select.poll()
        self.stale.register(unread, select.POLLIN)

    def call(self, afresh: bool = False) -> None:
        """Have the next child made; the one before must be dead. Without the forker the worker ends.

        `afresh`: it had used up its memory, and the kernel, in search of more, may have split our large pages.
        """
        try:
            write(self.calls, _GO_AFRESH if afresh else _GO)
        except BrokenPipeError:
            sys.exit("the forker is gone")

    def child(self) -> int:
        """The pid of the child that waits, which is ours. Raises: OSError; ends the worker when the forker is gone."""
        pid = self._said()
        if pid <= 0:
            self.call()
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def failure(self, status: int) -> int:
        """The error number with which a child that ended with `status` could not put up its walls; 0 where it could.

        A program cannot feign it: it has no descriptor that leads here. What a child killed too early has not read is
        taken away.
        """
        if os.WIFSIGNALED(status):
            while self.stale.poll(0):
                read(self.unread, _PACKET)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == frames.SETUP_FAILED and self.reports.poll(0):
            return -self._said()
        return 0

    def _said(self) -> int:
        answer = read(self.pids, frames.PID.size)
        if not answer:
            sys.exit("the forker is gone")
        return int(frames.PID.unpack(answer)[0])


def start(cell: jail.Jail, host_file: str, host_pid: int) -> Forker:
    """A new forker, whose children become ours.

    Raises: WallFailed where a wall is refused.
    """
    itself = os.pidfd_open(os.getpid())
    (taken, orders), (called, calls), (pids, given) = os.pipe(), os.pipe(), os.pipe()
    if os.fork() == 0:
        for fd in (orders, calls, pids, streams.CONTROL):
            os.close(fd)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if cell.worker_counts:
            os.nice(_BEHIND)
        try:
            maps = (
                os.open(f"{os.getpid()}/maps", os.O_RDONLY | os.O_CLOEXEC, dir_fd=cell.proc) if cell.proc >= 0 else -1
            )
            before = selftest.try_without(cell, host_file, host_pid)
            jail.restrict(cell)
            harness.rehearse()
            gc.collect()
            harness.gather()
            memory.renew(globals())
            gc.freeze()
            gc.disable()
            harness.rehearse()  # once more: what was freed is in order now
            write(given, b"ready")
        except jail.WallFailed as exc:
            os.write(given, f"{exc.errno} {exc.wall} {exc}".encode())
            _exit(frames.SETUP_FAILED)
        _serve(taken, called, given, cell, itself, before, host_file, maps)
    for fd in (called, given, itself):
        os.close(fd)
    answer = os.read(pids, 4096).decode()
    if answer != "ready":
        code, wall, why = (answer or f"5 {jail.SECCOMP} the forker died").split(" ", 2)
        raise jail.WallFailed(wall, OSError(int(code), why))
    forker = Forker(orders, calls, pids, taken)
    forker.call()
    return forker


def _serve(
    orders: int,
    calls: int,
    pids: int,
    cell: jail.Jail,
    worker: int,
    before: dict[str, bool],
    host_file: str,
    maps: int,
) -> None:
    """Clone a child at every call, which becomes the program of one order. Ends with the other end of `calls`."""
    clone, is_orphan = kernel.prepared_fork(cell.clone_flags), kernel.prepared_poll(worker)
    wall, steps, refused = jail.last_wall(cell), jail.last_steps(cell), 0
    enter, payload, last, run = partial(chdir, os.fsencode(cell.scratch)), streams.PAYLOAD, streams.LAST, harness.run
    lead = os.setpgid if cell.tools else None
    while go := _read(calls, 1):
        if go == _GO_AFRESH and maps >= 0:
            huge_pages.make_data_large(maps)
        pid = clone()
        if pid == 0:
            break
        _write(pids, _pack(pid if pid > 0 else -errno.EAGAIN))
    else:
        _exit(0)
    for step in steps:
        if step() < 0:
            refused = 1
    if is_orphan():
        _exit(frames.SETUP_FAILED)  # the worker died before the kernel knew to take us with it
    packet = _read(orders, _PACKET)
    if not packet:
        _exit(0)
    try:
        if refused:
            raise PermissionError(errno.EPERM, "capabilities or the signal of death could not be set")
        order = _unpack(packet)
        program, items = _unpack_payload(_pread(payload, _lseek(payload, 0, 2), 0))
        enter()
        if lead is not None:
            lead(0, 0)  # all that it starts stays in this group, where the worker finds it
        if order[0] > _LAST_OF_PYTHON:
            if order[0] == frames.SELF_TEST:
                selftest.run(cell, before, order[3], host_file, wall, streams.LOG)
            native.run(program, items, cell.scratch, wall)
        if wall() < 0:
            raise PermissionError(errno.EPERM, "seccomp was refused")
        _closerange(payload, last)
    except BaseException as exc:
        os.write(streams.ERR, f"sandbox: {type(exc).__name__}: {exc}\n".encode())
        _write(pids, _pack(-(getattr(exc, "errno", None) or errno.EIO)))
        _exit(frames.SETUP_FAILED)
    run(order, program, items)
