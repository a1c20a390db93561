"""The forker: a warm interpreter that makes one child per order, behind all walls that can be put up once.

A child is made when the one before is dead. It waits for its order behind all walls that can be up by then.

Waiting, watching and mounting are done by the worker, whose memory no child has.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import sys
from collections.abc import Callable

from . import cells, frames, harness, jail, kernel, landlock, native, selftest, streams

_PACKET = 64
_BEHIND = 10
"""Lower priority of runs whose processes only the worker bounds: else a flood would leave it no CPU to count them."""
_GO = b"1"
_LAST_OF_PYTHON = max(frames.STDIN, frames.FUNCTION)


class Forker:
    """The worker's connection to the forker. One child waits at any time; the worker asks for the next."""

    def __init__(self, orders: int, calls: int, pids: int, unread: int) -> None:
        self.orders, self.calls, self.pids, self.unread = orders, calls, pids, unread
        self.reports = select.poll()
        self.reports.register(pids, select.POLLIN)
        self.stale = select.poll()
        self.stale.register(unread, select.POLLIN)

    def call(self) -> None:
        """Have the next child made; the one before must be dead. Ends the worker if the forker is gone."""
        try:
            os.write(self.calls, _GO)
        except BrokenPipeError:
            sys.exit("the forker is gone")

    def child(self) -> int:
        """Return the pid of the waiting child, a child of ours. Raises: OSError. Ends the worker without a forker."""
        pid = self._answer()
        if pid <= 0:
            self.call()
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def failure(self, status: int) -> int:
        """Return the error number of a child that could not put up its walls, 0 for any other end.

        A program cannot forge it, since it has no descriptor of this pipe.
        """
        if os.WIFSIGNALED(status):  # it may have been killed before it read its order, which is no order of the next
            self.discard()
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == frames.SETUP_FAILED and self.reports.poll(0):
            return -self._answer()
        return 0

    def discard(self) -> None:
        """Drop orders that a killed child has not read; descriptors that came with one are closed."""
        while self.stale.poll(0):
            os.read(self.unread, _PACKET)

    def _answer(self) -> int:
        answer = os.read(self.pids, frames.PID.size)
        if not answer:
            sys.exit("the forker is gone")
        return int(frames.PID.unpack(answer)[0])


def start(cell: jail.Jail, host_file: str, host_pid: int) -> Forker:
    """Start a forker whose children become our children. Raises: WallFailed where a wall is refused."""
    itself = os.pidfd_open(os.getpid())
    if cell.proc < 0 and not cell.sessions:
        raise FileNotFoundError(errno.ENOENT, "each run opens its files by /proc, which is not there; mount it")
    # The child of a session gets descriptors with its order, for which the pipe must be a socket.
    taken, orders = kernel.socket_pair() if cell.sessions else os.pipe()
    (called, calls), (pids, answers) = os.pipe(), os.pipe()
    if os.fork() == 0:
        for fd in (orders, calls, pids, streams.CONTROL):
            os.close(fd)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if cell.sessions:
            jail.limit_descriptors()
        else:  # else a program of our uid could open our pipes by /proc
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        if cell.worker_counts:
            os.nice(_BEHIND)
        reopen = None if cell.sessions else streams.opener(cell.proc)
        try:
            before = selftest.try_without(cell, host_file, host_pid)
            jail.restrict(cell)
            gc.collect()
            gc.freeze()
            gc.disable()
            os.write(answers, b"ready")
        except jail.WallFailed as exc:
            os.write(answers, f"{exc.errno} {exc.wall} {exc}".encode())
            os._exit(frames.SETUP_FAILED)
        _serve((taken, called, answers), cell, itself, before, host_file, reopen)
    for fd in (called, answers, itself):
        os.close(fd)
    answer = os.read(pids, 4096).decode()
    if answer != "ready":
        code, wall, why = (answer or f"5 {frames.SECCOMP} the forker died").split(" ", 2)
        raise jail.WallFailed(wall, OSError(int(code), why))
    forker = Forker(orders, calls, pids, taken)
    forker.call()
    return forker


def _serve(
    pipes: tuple[int, int, int],
    cell: jail.Jail,
    worker: int,
    before: dict[str, bool],
    host_file: str,
    reopen: Callable[[], None] | None,
) -> None:
    """Clone a child at every call, which runs the program of one order. Ends when the other end of `calls` closes."""
    orders, calls, pids = pipes
    worker_ended = select.poll()
    worker_ended.register(worker, select.POLLIN)
    wall, drops = jail.last_wall(cell), cell.has_namespaces or os.geteuid() == 0
    while os.read(calls, 1):
        if reopen is not None:
            reopen()
        try:
            pid = kernel.fork(cell.clone_flags | kernel.CLONE_PARENT)
        except OSError as exc:
            pid = -(exc.errno or errno.EAGAIN)
        if pid == 0:
            break
        os.write(pids, frames.PID.pack(pid))
    else:
        os._exit(0)
    refused: OSError | None = None
    try:
        if drops:
            kernel.keep_capabilities()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    except OSError as exc:
        refused = exc
    if worker_ended.poll(0):
        os._exit(frames.SETUP_FAILED)  # the worker died before the kernel knew to take us with it
    if cell.sessions:
        cells.begin(orders, refused, cell, before, host_file, wall)
    _begin(orders, pids, refused, cell, before, host_file, wall)


def _begin(
    orders: int, pids: int, refused: OSError | None, cell: jail.Jail, before: dict[str, bool], host_file: str,
    wall: Callable[[], None],
) -> None:  # fmt: skip
    """Wait for an order, put up the walls that are left, and run its program. Never returns."""
    packet = os.read(orders, _PACKET)
    if not packet:
        os._exit(0)
    try:
        if refused is not None:
            raise refused
        order = frames.ORDER.unpack(packet)
        program, items = frames.unpack_payload(os.pread(streams.PAYLOAD, os.lseek(streams.PAYLOAD, 0, 2), 0))
        os.chdir(cell.scratch)
        if cell.tools:
            os.setpgid(0, 0)  # a process group of its own, in which the worker finds all that the run starts
        if cell.has_domains:
            assert cell.rules is not None
            landlock.restrict(cell.rules)
        if order[0] > _LAST_OF_PYTHON:
            if order[0] == frames.SELF_TEST:
                selftest.run(cell, before, order[3], host_file, wall, streams.LOG)
            native.run(program, items, cell.scratch, wall)
        wall()
        os.closerange(streams.PAYLOAD, streams.LAST)
    except BaseException as exc:
        os.write(streams.ERR, f"sandbox: {type(exc).__name__}: {exc}\n".encode())
        os.write(pids, frames.PID.pack(-(getattr(exc, "errno", None) or errno.EIO)))
        os._exit(frames.SETUP_FAILED)
    harness.run(order, program, items)
