"""The keeper of sessions from the caller's side: start it, connect to it, end it."""

from __future__ import annotations

import marshal
import os
import socket
import threading
from typing import Any

from verizero.pipeline.errors import IsolationError
from verizero.sandbox import isolation, process
from verizero.sandbox.process import Worker, WorkerDied

_MAX_PACKET = 256 << 10
BOUNDS = {"sessions": 2048, "memory_mib": 8192, "processes": 64}
"""The limits of all sessions of a pool together: their number; memory of programs and files, which is limited only
where control groups can be made; and processes and threads of a session on average, which such a group limits too."""


class Connection:
    """A session's own connection to its keeper. One order at a time, from any thread."""

    def __init__(self, sock: socket.socket, keeper: Keeper) -> None:
        self.sock, self.keeper = sock, keeper
        self.scratch, self.outputs = "", list[int]()

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return the keeper's answer. Raises: WorkerDied."""
        try:
            self.sock.send(marshal.dumps(order, 2))
            return self.answer()[0]
        except OSError as exc:
            raise WorkerDied(f"the keeper of sessions ended: {self.keeper.worker.last_words()} {exc}") from exc

    def answer(self) -> tuple[dict[str, Any], list[int]]:
        """Wait for an answer; return it and the descriptors that came with it. Raises: WorkerDied; OSError."""
        packet, files, _, _ = socket.recv_fds(self.sock, _MAX_PACKET, 2, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            raise WorkerDied(f"the keeper of sessions ended: {self.keeper.worker.last_words()}")
        return marshal.loads(packet), files

    def output(self, number: int, begin: int, end: int) -> bytes:
        """Return a part of standard output (`number` 0) or of standard error (1)."""
        return os.pread(self.outputs[number], end - begin, begin)

    def close(self) -> None:
        """End the session."""
        self.sock.close()
        outputs, self.outputs = self.outputs, []
        for fd in outputs:
            os.close(fd)


class Keeper:
    """A started keeper and the walls that hold around its programs."""

    def __init__(self, worker: Worker, level: int) -> None:
        self.worker, self.level = worker, level
        self._lock = threading.Lock()

    def open(self, order: dict[str, Any]) -> Connection:
        """Open a session. Raises: WorkerDied; IsolationError when too many are open."""
        client_end, keeper_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection = Connection(client_end, self)
        try:
            with self._lock:
                socket.send_fds(self.worker.sock, [marshal.dumps(order, 2)], [keeper_end.fileno()])
            keeper_end.close()
            answer, connection.outputs = connection.answer()
        except (OSError, WorkerDied) as exc:
            connection.close()
            self.worker.process.kill()  # it may be dying: no other session may ask it
            self.worker.process.wait()
            raise WorkerDied(f"the keeper of sessions does not answer: {exc}") from exc
        finally:
            keeper_end.close()
        if why := answer.get("broken"):
            connection.close()
            raise IsolationError(why)
        connection.scratch = answer["scratch"]
        return connection

    @property
    def is_alive(self) -> bool:
        """True while the keeper's process runs."""
        return self.worker.process.poll() is None

    def close(self) -> None:
        """End the keeper and all of its sessions."""
        self.worker.process.kill()
        self.worker.close()


def start(
    interpreter: str, walls: frozenset[str], number: int, tools: tuple[str, ...], packages: tuple[str, ...],
    min_level: int,
) -> Keeper:  # fmt: skip
    """Start a keeper, and check its walls. Raises: WorkerDied; IsolationError below `min_level`."""
    try:
        worker = process.start(interpreter, walls, number, tools, packages, BOUNDS)
    except process.WallRefused as exc:
        raise IsolationError(f"no sessions here: {exc.wall} is refused around their programs: {exc}") from exc
    stands = {wall: bool(worker.tried.get(wall, False)) for wall in (*isolation.WALLS, "rlimits")}
    level = isolation.level_of(stands)
    if level < min_level:
        worker.close()
        raise IsolationError(isolation.explain(isolation.Isolation(level, stands, worker.notes), min_level))
    return Keeper(worker, level)
