"""The forker: a warm interpreter behind all the walls that can be put up once, which makes one child per order.

A child copies every page that it, or the forker, writes to while both live, and taking a reference is a write. So what
runs between clone and the program calls prepared objects and looks up as few names as it can; the program's own pages
then are most of what a run costs. Waiting, watching and mounting are the worker's affair, which shares no page with it.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import select
import signal
from posix import _exit, chdir, closerange, lseek, pread, read, write
from typing import Any

from . import harness, jail, kernel, native, selftest, streams, wire

_PACKET = 64
_ANY = (wire.STDIN, 1.0, 1.0, 1, 1, 1, 1, 1)
_unpack = wire.unpack_payload


def start(cell: jail.Jail, host_file: str, host_pid: int) -> tuple[int, int]:
    """Where a new forker takes orders, and where it answers with the pids of children, which become ours.

    Raises: WallFailed where a wall is refused.
    """
    itself = os.pidfd_open(os.getpid())
    (taken, orders), (pids, given) = os.pipe(), os.pipe()
    if os.fork() == 0:
        for fd in (orders, pids, streams.CONTROL):
            os.close(fd)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            before = selftest.try_without(cell, host_file, host_pid)
            jail.restrict(cell)
            harness.rehearse()
            gc.collect()
            gc.freeze()
            gc.disable()
            harness.rehearse()  # once more: what was freed is in order now
            write(given, b"ready")
        except jail.WallFailed as exc:
            os.write(given, f"{exc.errno} {exc.wall} {exc}".encode())
            _exit(wire.SETUP_FAILED)
        _serve(taken, given, cell, itself, before, host_file)
    for fd in (taken, given, itself):
        os.close(fd)
    answer = os.read(pids, 4096).decode()
    if answer != "ready":
        code, wall, why = (answer or f"5 {jail.SECCOMP} the forker died").split(" ", 2)
        raise jail.WallFailed(wall, OSError(int(code), why))
    return orders, pids


def _serve(orders: int, pids: int, cell: jail.Jail, worker: int, before: dict[str, bool], host_file: str) -> None:
    """Clone a child for every order, and in each become the program. Ends with the other end of `orders`."""
    clone, unpack, pack = kernel.prepared_fork(cell.clone_flags), wire.ORDER.unpack, wire.PID.pack
    poll = select.poll()
    poll.register(worker, select.POLLIN)
    is_orphan, set_limit, wall, steps = poll.poll, resource.setrlimit, jail.last_wall(cell), jail.last_steps(cell)
    scratch, payload, last, unpack_payload, run = cell.scratch, streams.PAYLOAD, streams.LAST, _unpack, harness.run
    known, limits, is_python = b"", jail.run_limits(_ANY, False), True
    order: tuple[Any, ...] = _ANY
    while packet := read(orders, _PACKET):
        if packet != known:
            known, order = packet, unpack(packet)
            limits = jail.run_limits(order, cell.counts_processes)
            is_python = order[0] in (wire.STDIN, wire.FUNCTION)
        pid = clone()
        if pid == 0:
            break
        write(pids, pack(pid if pid > 0 else -errno.EAGAIN))
    else:
        _exit(0)
    try:
        program, items = unpack_payload(pread(payload, lseek(payload, 0, 2), 0))
        chdir(scratch)
        for limit, most in limits:
            set_limit(limit, most)
        for step in steps:
            if step() < 0:
                raise PermissionError("capabilities or the signal of death could not be set")
        if is_orphan(0):
            _exit(wire.SETUP_FAILED)  # the worker died before the kernel knew to take us with it
        if not is_python:
            if order[0] == wire.SELF_TEST:
                selftest.run(cell, before, order[3], host_file, wall, streams.LOG)
            native.run(program, items, scratch, wall)
        wall()
        closerange(payload, last)
    except BaseException as exc:
        os.write(streams.ERR, f"sandbox: {type(exc).__name__}: {exc}\n".encode())
        _exit(wire.SETUP_FAILED)
    run(order, program, items)
