"""The makers of a keeper's programs: a forker for the interpreters, and one for the shell where it is wanted."""

from __future__ import annotations

import array
import copy
import marshal
import os
import resource
import select
import signal
from typing import Any

from . import forker, frames, jail, process_flood
from .rooms import Room
from .watching import Allowed

_SOL_SOCKET, _SCM_RIGHTS, _MSG_DONTWAIT = 1, 1, 64


class Maker:
    """A forker, whose waiting child becomes the next program of some session."""

    def __init__(self, cell: jail.Jail, host_file: str, host_pid: int) -> None:
        self.cell = cell
        self.forker = forker.start(cell, host_file, host_pid)
        self.is_waiting, self.last, self.home = True, -1, -1
        self.sock: Any = None

    def settle(self, home: int) -> None:
        """Prepare to spawn. `home` is the keeper's mount namespace; it has no more forkers to start."""
        import _socket

        self.home, self.sock = home, _socket.socket(fileno=self.forker.orders)

    def refill(self, wait_ms: int = 0) -> None:
        """Have the next child made, unless it might take the order that the last one has not read yet."""
        if not self.is_waiting and not self.forker.stale.poll(0):
            self.forker.call()
            self.is_waiting = True
        elif wait_ms:
            select.select([], [], [], wait_ms / 1000)
            if self._last_is_dead():
                self.forker.discard()

    def _last_is_dead(self) -> bool:
        """True if the last program can no longer read its order."""
        try:
            return os.waitid(os.P_PID, self.last, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def spawn(self, room: Room, order: tuple[int, bytes, int, str], files: list[int], allowed: Allowed) -> int:
        """Start a program of a session; return its pid. Raises: OSError when its walls do not go up."""
        while not self.is_waiting:
            self.refill(wait_ms=1)
        self.is_waiting, pid, own = False, self.forker.child(), -1
        try:
            room.attach(pid, self.home)
            self._limit(pid, room, allowed)
            kind, state, seed, text = order
            packet = marshal.dumps((kind, room.scratch, state, seed, text), 2)
            if self.cell.rules is not None:
                shared = self.cell.has_namespaces
                own = self.cell.rules if shared else jail.rules(self.cell, room.scratch)
            sent = [*files, own] if own >= 0 else files
            self.sock.sendmsg([packet], [(_SOL_SOCKET, _SCM_RIGHTS, array.array("i", sent))])
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        finally:
            if own >= 0 and own != self.cell.rules:
                os.close(own)
        self.last = pid
        return pid

    def _limit(self, pid: int, room: Room, allowed: Allowed) -> None:
        most_bytes = max(room.disk_mib << 20, allowed.output_kib << 11)
        limits = [
            (resource.RLIMIT_FSIZE, most_bytes),
            (resource.RLIMIT_AS, (allowed.memory_mib + jail.BASE_MIB) << 20),
        ]
        if self.cell.has_namespaces:  # the kernel counts by user namespace, of which every child has its own
            limits.append((resource.RLIMIT_NPROC, allowed.processes))
        elif self.cell.worker_counts:
            limits.append((resource.RLIMIT_NPROC, jail.most_processes(self.cell, allowed.processes)))
        for name, value in limits:
            resource.prlimit(pid, name, (value, value))

    def reap(self, pid: int) -> tuple[int, float]:
        """Return status and CPU seconds of a program that is dead or dying, and end all that it has started."""
        status, usage = process_flood.end(pid) if self.cell.floods else os.wait4(pid, 0)[1:]
        if pid == self.last:  # it may have been killed before it read its order, which is nobody else's
            self.forker.discard()
        return status, usage.ru_utime + usage.ru_stime

    def failure(self, status: int) -> int:
        """Return the error number of a child that could not put up its walls, 0 for any other end.

        A program cannot forge it: it has no descriptor of this socket.
        """
        if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != frames.SETUP_FAILED:
            return 0
        try:
            report = self.sock.recv(frames.PID.size, _MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        return int(frames.PID.unpack(report)[0])


class Makers:
    """The makers of one keeper."""

    def __init__(self, cell: jail.Jail, config: dict[str, Any]) -> None:
        self.main_cell, plain = cell, copy.copy(cell)
        # A control group is of all sessions together, and not of one, as the self-test would have it.
        plain.walls, plain.tools = cell.walls - {frames.CGROUP}, ()
        if cell.rules is not None and cell.tools:
            plain.rules = jail.rules(plain, plain.scratch)
        self.python = Maker(plain, config["host_file"], config["host_pid"])
        self.shell = Maker(cell, config["host_file"], config["host_pid"]) if cell.tools else None
        self.all = [m for m in (self.python, self.shell) if m is not None]
