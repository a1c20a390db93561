"""The process that holds sessions: it makes their programs, lets them run for one call, halts them, and folds them.

One thread serves every session. It never waits for a program: a program that does not answer is killed by its limits.
Each session has a connection of its own to its owner. When that closes, everything of the session ends.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import resource
import select
import sys
import time
from collections.abc import Callable
from typing import Any

from . import cells, disk, frames, jail, kernel, rooms, streams
from .makers import Makers
from .seats import Seat
from .watching import Allowed

_TICK_S = 1.0
_FILES_EACH = 8
"""Descriptors that a session may need at one time."""
_SPARE_FILES = 64


def main(cell: jail.Jail, caller: int, config: dict[str, Any]) -> None:
    """Hold sessions until the caller is gone. Raises: WallFailed."""
    bounds = config["sessions"]
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # else the keeper could not enter its children's mount namespaces
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    if cell.cgroup is not None:
        cell.cgroup.bound(bounds["memory_mib"], 0, 0, bounds["sessions"] * bounds["processes"])
    makers = Makers(cell, config)
    home = -1
    if cell.has_namespaces:
        kernel.unshare(kernel.CLONE_NEWNS)  # what is mounted from here on, no child sees
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount("tmpfs", rooms.PLACE, "tmpfs", flags, "mode=700")
        home = os.open(f"{os.getpid()}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=cell.proc)
    elif cell.tools:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    most = min(bounds["sessions"], (most_files - _SPARE_FILES) // _FILES_EACH)
    for maker in makers.all:
        maker.settle(home)
    keeper = Keeper(caller, makers, most, bounds["least_free_mib"])
    tried = keeper.test()
    hello = {"notes": cell.notes, "python": sys.version.split()[0], "tried": tried, "most": most}
    os.write(streams.CONTROL, json.dumps(hello).encode())
    keeper.serve()


class Keeper:
    """All sessions of one caller."""

    def __init__(self, caller: int, makers: Makers, most: int, least_free_mib: int) -> None:
        self.makers, self.most, self.least_free_mib = makers, most, least_free_mib
        self.seats: dict[int, Seat] = {}
        self.acts: dict[int, Callable[[], None]] = {}
        """Descriptor -> what to do when it is readable."""
        self.poll = select.epoll()
        self.control, self.count = streams.CONTROL, 0
        self.listen(caller, self.end)
        self.listen(self.control, self.open)
        self.watched: set[Seat] = set()

    def listen(self, fd: int, act: Callable[[], None]) -> None:
        """Have `act` called whenever `fd` is readable."""
        self.acts[fd] = act
        self.poll.register(fd, select.EPOLLIN)

    def ignore(self, fd: int) -> None:
        """Listen to `fd` no more."""
        if self.acts.pop(fd, None) is not None:
            self.poll.unregister(fd)

    def serve(self) -> None:
        """Serve all sessions, for good."""
        tick = time.monotonic() + _TICK_S
        while True:
            now = time.monotonic()
            due = min([tick, *(s.watch.due for s in self.watched if s.watch is not None)])
            for fd, _ in self.poll.poll(max(0.0, due - now) + 0.001):
                act = self.acts.get(fd)
                if act is not None:
                    self.try_to(act)
            now = time.monotonic()
            for seat in [s for s in self.watched if s.watch is not None and s.watch.due <= now]:
                assert seat.watch is not None
                self.try_to(seat.watch.look, seat)
            for maker in self.makers.all:
                with contextlib.suppress(OSError):  # the session that needs a process next is told why there is none
                    maker.refill()
            if now >= tick:
                tick = now + _TICK_S
                self.fold_some(now)

    def try_to(self, act: Callable[[], object], seat: Any = None) -> None:
        """Call `act`. What it raises ends its own session alone: the keeper serves those of other clients too."""
        seat = getattr(act, "__self__", self) if seat is None else seat
        try:
            act()
        except Exception as exc:
            if isinstance(seat, Seat):
                seat.owner.reply({"broken": f"the session failed: {type(exc).__name__}: {exc!a:.300}"})
                with contextlib.suppress(Exception):
                    seat.close()

    def end(self) -> None:
        """End all sessions and this process."""
        for seat in list(self.seats.values()):
            seat.close()
        if not self.makers.main_cell.has_namespaces:
            with contextlib.suppress(OSError):
                disk.empty(self.makers.main_cell.scratch)
        os._exit(0)

    def open(self) -> None:
        """Open a session, as the caller asks on the control socket."""
        packet, files = kernel.receive(self.control)
        if not packet:
            self.end()
        order = marshal.loads(packet)
        connection = files[0]
        if len(self.seats) >= self.most:
            for seat in [s for s in self.seats.values() if s.owner.is_gone]:
                seat.close()
        if len(self.seats) >= self.most:
            why = f"{self.most} sessions are open; close some, or raise SessionBounds.sessions and `ulimit -n`"
            os.write(connection, marshal.dumps({"full": why}, 2))
            os.close(connection)
            return
        self.count += 1
        self.seats[connection] = Seat(self, connection, self.count, order)

    def fold_some(self, now: float) -> None:
        """Fold the sessions that nobody has called for long, and more where the machine is short of memory."""
        asleep = sorted((s for s in self.seats.values() if s.can_fold), key=lambda s: s.last)
        short = sum(1 for _ in asleep) if self.free_mib() < self.least_free_mib else 0
        # A few at a time: memory that is given back counts as free a little later.
        for place, seat in enumerate(asleep):
            if now - seat.last > seat.idle_s or place < min(short, max(1, len(asleep) // 8)):
                self.try_to(seat.fold, seat)

    def free_mib(self) -> float:
        """Return the memory of the machine that is free or can be freed; without end where nothing tells."""
        text = b""
        with contextlib.suppress(OSError):
            fd = os.open("meminfo", os.O_RDONLY, dir_fd=self.makers.main_cell.proc)
            text = os.read(fd, 4096)
            os.close(fd)
        lines = [line.split() for line in text.splitlines() if line.startswith(b"MemAvailable")]
        return int(lines[0][1]) / 1024 if lines else float("inf")

    def test(self) -> dict[str, bool]:
        """Return the walls that hold around a session's program. Raises: OSError where none could be made."""
        room = rooms.Room(self.makers.main_cell, 0, 4, disk.MAX_ENTRIES)
        files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("out", "err", "log")]
        out, err, log = files
        try:
            allowed = Allowed(20.0, 10.0, 64, 64, 16)
            maker = self.makers.python
            status, _ = maker.reap(maker.spawn(room, (cells.TEST, b"", 0, ""), [out, err, log, log], allowed))
            records = frames.read_records(os.pread(log, 4096, 0), 1)
            if not records:
                raise jail.WallFailed("self-test", OSError(5, f"{status}: {os.pread(err, 2000, 0)!r}"))
            return json.loads(records[0].value)  # type: ignore[no-any-return]
        finally:
            for fd in files:
                os.close(fd)
            room.remove()
