"""The forker: a warm interpreter that makes one child per order, behind all walls that can be put up once.

A child is made when the one before is dead. It waits for its order behind all walls but those that need the order. A
suite of tests takes two: the child that waits runs the tests, and a second, made on demand, has the program. Two pipes
join them, and they have no other file in common but the input and the scratch folder.

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
from typing import NoReturn

from . import cells, frames, harness, kernel, landlock, selftest, streams, suite_program, suite_tests, walls

_PACKET = 64
_NICENESS = 10
"""Niceness of runs whose processes the worker itself counts: so it still gets CPU during a fork bomb."""
_GO, _PARTNER = b"1", b"2"
_LAST_OF_PYTHON = max(frames.STDIN, frames.FUNCTION)


class Forker:
    """The worker's connection to the forker. One child waits for an order; the worker asks for the next child."""

    def __init__(self, orders: int, calls: int, pids: int, unread: int, process: int) -> None:
        """`process`: descriptor of the forker's process."""
        self.orders, self.calls, self.pids, self.unread = orders, calls, pids, unread
        self.reports = select.poll()
        self.reports.register(pids, select.POLLIN)
        self.answers = select.poll()
        for fd in (pids, process):
            self.answers.register(fd, select.POLLIN)
        self.unread_orders = select.poll()
        self.unread_orders.register(unread, select.POLLIN)

    def request_child(self) -> None:
        """Ask for the next child; the one before must be dead. Ends the worker if the forker is gone."""
        try:
            os.write(self.calls, _GO)
        except BrokenPipeError:
            _end_without_words()

    def waiting_child(self) -> int:
        """Return the pid of the waiting child, our own child. Raises: OSError. Ends the worker without a forker."""
        pid = self._answer()
        if pid <= 0:
            self.request_child()
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def make_partner(self) -> int:
        """Return the pid of a second child, our own too, which the waiting child can talk to. Raises: OSError."""
        os.write(self.calls, _PARTNER)
        pid = self._answer()
        if pid <= 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def failure(self, status: int) -> int:
        """Return the error number of a child without its walls, else 0. Programs have no descriptor of this pipe."""
        if os.WIFSIGNALED(status):  # perhaps before it read its order, which the next child must not read
            self.discard()
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == frames.SETUP_FAILED and self.reports.poll(0):
            return -self._answer()
        return 0

    def discard(self) -> None:
        """Drop the order that a killed child has not read, and close the descriptors sent with it."""
        while self.unread_orders.poll(0):
            os.read(self.unread, _PACKET)

    def _answer(self) -> int:
        # A forker that is killed once it has a child cannot tell its number, and the child has the pipe open.
        if self.pids not in dict(self.answers.poll()) or not (answer := os.read(self.pids, frames.PID.size)):
            _end_without_words()
        return int(frames.PID.unpack(answer)[0])


def _end_without_words() -> NoReturn:
    """End the worker, since the forker is gone. A word of it would overwrite the errors of the run that has ended."""
    os._exit(1)


def start(jail: walls.Jail, host_file: str, host_pid: int) -> Forker:
    """Start a forker whose children become our children. Ends the worker if the forker dies meanwhile.

    Raises: WallFailed where the kernel refuses a wall.
    """
    our_pidfd = os.pidfd_open(os.getpid())
    if jail.proc < 0 and not jail.has_sessions:
        raise FileNotFoundError(errno.ENOENT, "each run opens its files by /proc, which is not there; mount it")
    # A session's program gets descriptors with its order: only a socket can pass them.
    child_orders, orders = kernel.socket_pair() if jail.has_sessions else os.pipe()
    (called, calls), (pids, answers) = os.pipe(), os.pipe()
    if (process := os.fork()) == 0:
        for fd in (orders, calls, pids, streams.CONTROL):
            os.close(fd)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if jail.has_sessions:
            walls.limit_descriptors()
        else:  # without this, a program of our uid could open our pipes by /proc
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        if jail.worker_must_count_processes:
            os.nice(_NICENESS)
        reopen = None if jail.has_sessions else streams.opener(jail.proc)
        try:
            works_without = selftest.try_without(jail, host_file, host_pid)
            walls.restrict(jail)
            gc.collect()
            gc.freeze()
            gc.disable()
            os.write(answers, b"ready")
        except walls.WallFailed as exc:
            os.write(answers, f"{exc.errno} {exc.wall} {exc}".encode())
            os._exit(frames.SETUP_FAILED)
        _serve((child_orders, called, answers), jail, our_pidfd, works_without, host_file, reopen)
    for fd in (called, answers, our_pidfd):
        os.close(fd)
    answer = os.read(pids, 4096).decode()
    if not answer:  # killed, for example: that says nothing about a wall
        sys.exit("the forker died while it started")
    if answer != "ready":
        code, wall, why = answer.split(" ", 2)
        raise walls.WallFailed(wall, OSError(int(code), why))
    forker = Forker(orders, calls, pids, child_orders, os.pidfd_open(process))
    forker.request_child()
    return forker


def _serve(
    pipes: tuple[int, int, int],
    jail: walls.Jail,
    worker: int,
    works_without: dict[str, bool],
    host_file: str,
    reopen: Callable[[bool], None] | None,
) -> None:
    """Make a child whenever the worker asks for one; it runs the program of one order. Ends when `calls` is closed."""
    orders, calls, pids = pipes
    worker_ended = select.poll()
    worker_ended.register(worker, select.POLLIN)
    wall, has_capabilities = walls.last_wall(jail), jail.has_namespaces or os.geteuid() == 0
    link = _Link()
    while request := os.read(calls, 1):
        is_partner = request == _PARTNER
        if reopen is not None:
            reopen(is_partner)
            if not is_partner:
                link.renew()
        try:
            pid = kernel.fork(jail.clone_flags | kernel.CLONE_PARENT)
        except OSError as exc:
            pid = -(exc.errno or errno.EAGAIN)
        if pid == 0:
            break
        if is_partner:
            link.close()
        os.write(pids, frames.PID.pack(pid))
    else:
        os._exit(0)
    refused: OSError | None = None
    try:
        if has_capabilities:
            kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    except OSError as exc:
        refused = exc
    if worker_ended.poll(0):
        os._exit(frames.SETUP_FAILED)  # it died before PR_SET_PDEATHSIG was set
    if jail.has_sessions:
        cells.begin(orders, refused, jail, works_without, host_file, wall)
    first_order = link.program[0] if is_partner else orders  # the other child passes its own on to the partner
    _begin(first_order, pids, refused, jail, works_without, host_file, wall, link)


class _Link:
    """Two pipes between the waiting child and its partner, which the forker makes, and closes when both have them."""

    def __init__(self) -> None:
        self.tests: list[int] = []
        """Ends of the child that runs tests: to read and to write."""
        self.program: list[int] = []

    def renew(self) -> None:
        """Make the pipes of the next child."""
        self.close()
        (to_tests, from_program), (to_program, from_tests) = os.pipe(), os.pipe()
        self.tests, self.program = [to_tests, from_tests], [to_program, from_program]

    def close(self) -> None:
        """Close this process's ends."""
        for fd in (*self.tests, *self.program):
            os.close(fd)
        self.tests, self.program = [], []

    def pass_on(self, packet: bytes) -> None:
        """Send the order to the partner. The worker has set the limits of both by then."""
        os.write(self.tests[1], packet)


def _begin(
    orders: int, pids: int, refused: OSError | None, jail: walls.Jail, works_without: dict[str, bool], host_file: str,
    wall: Callable[[], None], link: _Link,
) -> None:  # fmt: skip
    """Wait for an order, put up the last walls, and run its program. Never returns."""
    packet = os.read(orders, _PACKET)
    if not packet:
        os._exit(0)
    try:
        if refused is not None:
            raise refused
        order = frames.ORDER.unpack(packet)
        has_program = orders in link.program
        if order[0] == frames.SUITE:
            program, items = b"", frames.read_suite(streams.PAYLOAD, of_tests=not has_program)
            if not has_program:
                link.pass_on(packet)
        else:
            program, items = frames.unpack_payload(os.pread(streams.PAYLOAD, os.lseek(streams.PAYLOAD, 0, 2), 0))
        os.chdir(jail.scratch)
        if jail.tools:
            os.setpgid(0, 0)  # in this process group the worker finds all that the run starts
        if jail.needs_own_domain:
            assert jail.rules_fd is not None
            landlock.restrict(jail.rules_fd)
        if order[0] > _LAST_OF_PYTHON and order[0] != frames.SUITE:
            if order[0] == frames.SELF_TEST:
                selftest.run(jail, works_without, order[3], host_file, wall, streams.LOG)
            harness.run_native(program, items, jail.scratch, wall)
        wall()
        if order[0] == frames.SUITE:
            for fd, number in zip(link.program if has_program else link.tests, frames.LINK, strict=True):
                os.dup2(fd, number)
        os.closerange(frames.LINK[1] + 1 if order[0] == frames.SUITE else streams.PAYLOAD, streams.LAST)
    except BaseException as exc:
        os.write(streams.ERR, f"sandbox: {type(exc).__name__}: {exc}\n".encode())
        os.write(pids, frames.PID.pack(-(getattr(exc, "errno", None) or errno.EIO)))
        os._exit(frames.SETUP_FAILED)
    if order[0] == frames.SUITE:
        (suite_program if has_program else suite_tests).run(order, items)
    harness.run(order, program, items)
