"""A keeper of sessions as the caller sees it: started, connected to, ended."""

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

_MOST_PACKET = 256 << 10
_MOST_FILES = 4


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """The bounds of all sessions of a pool together.

    Raises: ValueError naming the bound that is not positive.
    """

    sessions: int = 2048
    memory_mib: int = 8192
    """Bounded where control groups can be made: programs and files together."""
    least_free_mib: int = 512
    """Below that much free memory of the machine, sessions that sleep are folded."""
    processes: int = 64
    """Average of processes and threads of a session, which a control group bounds."""

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
        room = socket.CMSG_SPACE(_MOST_FILES * array.array("i").itemsize)
        packet, ancillary, _, _ = self.sock.recvmsg(_MOST_PACKET, room, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            raise WorkerDied(f"the keeper of sessions ended: {self.keeper.worker.last_words()}")
        numbers = array.array("i")
        for _, _, data in ancillary:
            numbers.frombytes(data)
        return marshal.loads(packet), list(numbers)

    def output(self, number: int, begin: int, end: int) -> bytes:
        """Return a part of standard output (0) or of errors (1)."""
        return os.pread(self.outputs[number], end - begin, begin)

    def greet(self) -> None:
        """Take the first answer of an opened session. Raises: WorkerDied; OSError; IsolationError if there is none."""
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
    """A started keeper."""

    def __init__(self, worker: Worker, level: int, stands: dict[str, bool]) -> None:
        self.worker, self.level, self.stands = worker, level, stands
        self._lock = threading.Lock()

    def open(self, order: dict[str, Any]) -> Connection:
        """Open a session. Raises: WorkerDied; IsolationError when too many are open."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection = Connection(ours, self)
        try:
            with self._lock:
                _send(self.worker.sock, order, [theirs.fileno()])
            theirs.close()
            connection.greet()
        except IsolationError:
            connection.close()
            raise
        except (OSError, WorkerDied) as exc:
            connection.close()
            self.worker.process.kill()  # it may be dying: then it must not be asked again
            self.worker.process.wait()
            raise WorkerDied(f"the keeper of sessions does not answer: {exc}") from exc
        finally:
            theirs.close()
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
    interpreter: str, walls: frozenset[str], number: int, tools: tuple[str, ...], bounds: SessionBounds, min_level: int
) -> Keeper:
    """Start a keeper, whose walls were tried around a session's program. Raises: WorkerDied; IsolationError."""
    try:
        worker = process.start(interpreter, walls, number, tools, asdict(bounds))
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
