"""The keeper of sessions from the caller's side: start it, connect to it, end it."""

from __future__ import annotations

import array
import marshal
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from verizero.pipeline.errors import IsolationError
from verizero.sandbox import isolation, process
from verizero.sandbox.process import Worker, WorkerDied

_MAX_PACKET = 256 << 10
_MAX_FILES = 4


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """The limits of all sessions of a pool together.

    Raises: ValueError naming the limit that is not positive.
    """

    sessions: int = 2048
    memory_mib: int = 8192
    """Memory of programs and files together. It is limited only where control groups can be made."""
    least_free_mib: int = 512
    """If the machine has less free memory than this, idle sessions are folded."""
    processes: int = 64
    """Processes and threads of a session on average. A control group limits all of them together."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not isinstance(value := getattr(self, field.name), int) or value < 1:
                raise ValueError(f"SessionBounds.{field.name} must be a positive integer, got {value!r}")


class Connection:
    """A session's own connection to its keeper. One order at a time, from any thread."""

    def __init__(self, sock: socket.socket, keeper: Keeper) -> None:
        self.sock, self.keeper = sock, keeper
        self.scratch, self.outputs = "", [-1, -1]

    def ask(self, order: dict[str, Any], files: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        """Return the keeper's answer and the descriptors that came with it. Raises: WorkerDied."""
        try:
            _send(self.sock, order, files)
            return self.answer()
        except OSError as exc:
            raise WorkerDied(f"the keeper of sessions ended: {self.keeper.worker.last_words()} {exc}") from exc

    def answer(self) -> tuple[dict[str, Any], list[int]]:
        """Wait for an answer. Raises: WorkerDied."""
        ancillary_bytes = socket.CMSG_SPACE(_MAX_FILES * array.array("i").itemsize)
        packet, ancillary, _, _ = self.sock.recvmsg(_MAX_PACKET, ancillary_bytes, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            raise WorkerDied(f"the keeper of sessions ended: {self.keeper.worker.last_words()}")
        numbers = array.array("i")
        for _, _, data in ancillary:
            numbers.frombytes(data)
        return marshal.loads(packet), list(numbers)

    def output(self, number: int, begin: int, end: int) -> bytes:
        """Return a part of standard output (`number` 0) or of standard error (1)."""
        return os.pread(self.outputs[number], end - begin, begin)

    def read_greeting(self) -> None:
        """Read the first answer of a new session. Raises: WorkerDied; OSError; IsolationError if it was not opened."""
        answer, outputs = self.answer()
        if why := answer.get("full") or answer.get("broken"):
            raise IsolationError(why)
        self.scratch, self.outputs = answer["scratch"], outputs

    def close(self) -> None:
        """End the session."""
        self.sock.close()
        for fd in self.outputs:
            if fd >= 0:
                os.close(fd)
        self.outputs = [-1, -1]


class Keeper:
    """A started keeper and the walls that hold around its programs."""

    def __init__(self, worker: Worker, level: int, stands: dict[str, bool]) -> None:
        self.worker, self.level, self.stands = worker, level, stands
        self._lock = threading.Lock()

    def open(self, order: dict[str, Any]) -> Connection:
        """Open a session. Raises: WorkerDied; IsolationError when too many are open."""
        client_end, keeper_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection = Connection(client_end, self)
        try:
            with self._lock:
                _send(self.worker.sock, order, [keeper_end.fileno()])
            keeper_end.close()
            connection.read_greeting()
        except IsolationError:
            connection.close()
            raise
        except (OSError, WorkerDied) as exc:
            connection.close()
            self.worker.process.kill()  # it may be dying: no other session may ask it
            self.worker.process.wait()
            raise WorkerDied(f"the keeper of sessions does not answer: {exc}") from exc
        finally:
            keeper_end.close()
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
    bounds: SessionBounds, min_level: int,
) -> Keeper:  # fmt: skip
    """Start a keeper, and check its walls. Raises: WorkerDied; IsolationError below `min_level`."""
    try:
        worker = process.start(interpreter, walls, number, tools, packages, asdict(bounds))
    except process.WallRefused as exc:
        raise IsolationError(f"no sessions here: {exc.wall} is refused around their programs: {exc}") from exc
    stands = {wall: bool(worker.tried.get(wall, False)) for wall in (*isolation.WALLS, "rlimits")}
    level = isolation.level_of(stands)
    if level < min_level:
        worker.close()
        raise IsolationError(isolation.explain(isolation.Isolation(level, stands, worker.notes), min_level))
    return Keeper(worker, level, stands)


def _send(sock: socket.socket, order: dict[str, Any], files: Sequence[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    sock.sendmsg([marshal.dumps(order, 2)], rights)
