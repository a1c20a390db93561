"""The keeper of sessions: it starts their programs, resumes one for each call, halts it afterwards, and folds sessions.

To fold a session is to end its processes and remove its files; the client replays its calls when it needs them again.
One thread serves every session. It never waits for a program: a program that does not answer is killed at its limits.
Each session has a connection of its own to its client. When that closes, the session ends.
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

from . import cells, disk, frames, kernel, session_folder, streams, walls
from .keeper_sessions import KeeperSession
from .program_forkers import ProgramForkers
from .watching import RunLimits

_TICK_S = 1.0
_DESCRIPTORS_PER_SESSION = 8
"""Descriptors that a session may need at one time."""
_SPARE_DESCRIPTORS = 64


def main(jail: walls.Jail, caller: int, config: dict[str, Any]) -> None:
    """Serve sessions until the caller is gone. Raises: WallFailed."""
    bounds = config["sessions"]
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # needed to enter the mount namespaces of children
    max_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_descriptors, max_descriptors))
    if jail.cgroup is not None:
        jail.cgroup.bound(bounds["memory_mib"], 0, 0, bounds["sessions"] * bounds["processes"])
    forkers = ProgramForkers(jail, config)
    mounts = -1
    if jail.has_namespaces:
        kernel.unshare(kernel.CLONE_NEWNS)  # no child sees what is mounted after this
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount("tmpfs", session_folder.KEEPER_FOLDER, "tmpfs", flags, "mode=700")
        mounts = os.open(f"{os.getpid()}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=jail.proc)
    elif jail.tools:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    max_sessions = min(bounds["sessions"], (max_descriptors - _SPARE_DESCRIPTORS) // _DESCRIPTORS_PER_SESSION)
    for forker in forkers.all:
        forker.prepare(mounts)
    keeper = Keeper(caller, forkers, max_sessions, bounds["least_free_mib"])
    walls_that_hold = keeper.test_walls()
    hello = {"notes": jail.notes, "python": sys.version.split()[0], "tried": walls_that_hold, "most": max_sessions}
    os.write(streams.CONTROL, json.dumps(hello).encode())
    keeper.serve()


class Keeper:
    """The event loop over all sessions of a pool."""

    def __init__(self, caller: int, forkers: ProgramForkers, max_sessions: int, least_free_mib: int) -> None:
        self.forkers, self.max_sessions, self.least_free_mib = forkers, max_sessions, least_free_mib
        self.sessions: dict[int, KeeperSession] = {}
        self.actions: dict[int, Callable[[], None]] = {}
        """Descriptor -> function to call when it is readable."""
        self.poll = select.epoll()
        self.control, self.num_opened = streams.CONTROL, 0
        self.listen(caller, self.end)
        self.listen(self.control, self.open)
        self.watched: set[KeeperSession] = set()

    def listen(self, fd: int, action: Callable[[], None]) -> None:
        """Call `action` whenever `fd` is readable, until `ignore`."""
        self.actions[fd] = action
        self.poll.register(fd, select.EPOLLIN)

    def ignore(self, fd: int) -> None:
        """Stop listening to `fd`."""
        if self.actions.pop(fd, None) is not None:
            self.poll.unregister(fd)

    def serve(self) -> None:
        """Serve all sessions. Never returns."""
        tick = time.monotonic() + _TICK_S
        while True:
            now = time.monotonic()
            next_look = min([tick, *(s.watch.next_look for s in self.watched if s.watch is not None)])
            for fd, _ in self.poll.poll(max(0.0, next_look - now) + 0.001):
                action = self.actions.get(fd)
                if action is not None:
                    self.try_to(action)
            now = time.monotonic()
            for session in [s for s in self.watched if s.watch is not None and s.watch.next_look <= now]:
                assert session.watch is not None
                self.try_to(session.watch.look, session)
            for forker in self.forkers.all:
                with contextlib.suppress(OSError):  # the next `spawn` raises it to a session
                    forker.refill()
            if now >= tick:
                tick = now + _TICK_S
                self.fold_idle(now)

    def try_to(self, action: Callable[[], object], session: Any = None) -> None:
        """Call `action`. If it raises, close its session only: the other sessions continue."""
        session = getattr(action, "__self__", self) if session is None else session
        try:
            action()
        except Exception as exc:
            if isinstance(session, KeeperSession):
                session.connection.reply({"broken": f"the session failed: {type(exc).__name__}: {exc!a:.300}"})
                with contextlib.suppress(Exception):
                    session.close()

    def end(self) -> None:
        """Close all sessions and end this process."""
        for session in list(self.sessions.values()):
            session.close()
        if not self.forkers.main_jail.has_namespaces:
            with contextlib.suppress(OSError):
                disk.empty(self.forkers.main_jail.scratch)
        os._exit(0)

    def open(self) -> None:
        """Open a session, by an order on the control socket."""
        packet, files = kernel.receive(self.control)
        if not packet:
            self.end()
        order = marshal.loads(packet)
        connection_fd = files[0]
        if len(self.sessions) >= self.max_sessions:
            for session in [s for s in self.sessions.values() if s.connection.is_closed]:
                session.close()
        if len(self.sessions) >= self.max_sessions:
            why = f"{self.max_sessions} sessions are open; close some, or raise SessionBounds.sessions and `ulimit -n`"
            os.write(connection_fd, marshal.dumps({"full": why}, 2))
            os.close(connection_fd)
            return
        self.num_opened += 1
        self.sessions[connection_fd] = KeeperSession(self, connection_fd, self.num_opened, order)

    def fold_idle(self, now: float) -> None:
        """Fold sessions that were not called for `idle_s`; if the machine is short of memory, also the longest idle."""
        idle = sorted((s for s in self.sessions.values() if s.can_fold), key=lambda s: s.last_call_s)
        # An eighth at a time: freed memory is counted as free only a little later.
        num_to_fold = max(1, len(idle) // 8) if self.free_mib() < self.least_free_mib else 0
        for index, session in enumerate(idle):
            if now - session.last_call_s > session.idle_s or index < num_to_fold:
                self.try_to(session.fold, session)

    def free_mib(self) -> float:
        """Return the available memory of the machine, by /proc/meminfo; infinite if that is not readable."""
        text = b""
        with contextlib.suppress(OSError):
            fd = os.open("meminfo", os.O_RDONLY, dir_fd=self.forkers.main_jail.proc)
            text = os.read(fd, 4096)
            os.close(fd)
        lines = [line.split() for line in text.splitlines() if line.startswith(b"MemAvailable")]
        return int(lines[0][1]) / 1024 if lines else float("inf")

    def test_walls(self) -> dict[str, bool]:
        """Try the walls around a program of a session; return which hold. Raises: OSError if no program starts."""
        folder = session_folder.SessionFolder(self.forkers.main_jail, 0, 4, disk.MAX_ENTRIES)
        files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("out", "err", "log")]
        out, err, log = files
        try:
            limits = RunLimits(20.0, 10.0, 64, 64, 16)
            forker = self.forkers.python
            status, _ = forker.reap(forker.spawn(folder, (cells.TEST, b"", 0, ""), [out, err, log, log], limits))
            records = frames.read_records(os.pread(log, 4096, 0), 1)
            if not records:
                raise walls.WallFailed("self-test", OSError(5, f"{status}: {os.pread(err, 2000, 0)!r}"))
            return json.loads(records[0].value)  # type: ignore[no-any-return]
        finally:
            for fd in files:
                os.close(fd)
            folder.remove()
