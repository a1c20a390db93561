"""Answers of the keeper to a session's orders, and the files in memory that are sent with them."""

from __future__ import annotations

import hashlib
import marshal
import os
from typing import Any

from . import kernel
from .session_folder import OrderRefused

_MAX_PACKET = 256 << 10
_MSG_PEEK, _MSG_DONTWAIT = 2, 64


def digest(packed: bytes) -> str:
    """Return the hash of a session's packed files."""
    return hashlib.sha256(packed).hexdigest()


def answer(
    status: int | None, state: int, code: int, why: int, ends: tuple[int, int] = (0, 0), cpu: float = 0.0
) -> dict[str, Any]:
    """Return the answer to a call. `status`: the wait status if its process died; else `state` and `code` count."""
    return {"status": status, "state": state, "code": code, "why": why, "begins": (0, 0), "ends": ends, "cpu": cpu,
            "wall": 0.0, "alive": True}  # fmt: skip


def failure(problem: Exception) -> dict[str, Any]:
    """Return the answer to an order that failed: "broken" by the machine, or "refused" for the order's own fault."""
    if isinstance(problem, OSError):
        return {"broken": str(problem)}
    is_plain = isinstance(problem, OrderRefused)
    return {"refused": str(problem) if is_plain else f"{type(problem).__name__}: {problem!a:.300}"}


def wait_status(info: Any) -> int:
    """Return a result of waitid(2) as a wait status."""
    return int(info.si_status) << 8 if info.si_code == os.CLD_EXITED else int(info.si_status)


def size(fd: int) -> int:
    """Return the size of an open file."""
    return os.fstat(fd).st_size


def beginning(fd: int) -> str:
    """Return the beginning of an open file as text."""
    return os.pread(fd, 500, 0).decode(errors="replace")


def file(data: bytes) -> int:
    """Return a file in memory with the data."""
    fd = os.memfd_create("data", os.MFD_CLOEXEC)
    view = memoryview(data)
    num_written = 0
    while num_written < len(data):
        num_written += os.pwrite(fd, view[num_written:], num_written)
    return fd


class Connection:
    """The keeper's end of a session's connection to its client."""

    def __init__(self, connection: int) -> None:
        import _socket

        self.sock = _socket.socket(fileno=connection)

    @property
    def is_closed(self) -> bool:
        """True if the client has closed its end."""
        try:
            return not self.sock.recv(1, _MSG_PEEK | _MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def reply(self, answer: dict[str, Any], files: list[int] | None = None) -> None:
        """Answer the client, which waits for one answer to each order."""
        import array

        ancillary = [(1, 1, array.array("i", files))] if files else []
        try:
            self.sock.sendmsg([marshal.dumps(answer, 2)], ancillary)
        except OSError:  # the client is gone; the next `receive` notices it
            return

    def receive(self) -> tuple[dict[str, Any] | None, list[int]]:
        """Return the client's order and the descriptors sent with it; None and none if the client is gone."""
        try:
            packet, files = kernel.receive(self.sock.fileno(), _MAX_PACKET)
        except OSError:
            packet, files = b"", []
        return marshal.loads(packet) if packet else None, files


class Outputs:
    """The files to which programs of a session write: output, errors, and the state after a shell line."""

    def __init__(self) -> None:
        self.out, self.err = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("out", "err"))
        self.state_file = -1

    def empty(self) -> None:
        """Empty output and errors."""
        for fd in self.both:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)

    def sizes(self) -> tuple[int, int]:
        """Return the sizes of output and errors."""
        return size(self.out), size(self.err)

    def capped(self, out: int, err: int) -> tuple[int, int]:
        """Return claimed ends of output and errors, cut at the real sizes."""
        return min(out, size(self.out)), min(err, size(self.err))

    def replace_state_file(self, state_file: int) -> None:
        """Use another file for the state, and close the one before."""
        if self.state_file >= 0:
            os.close(self.state_file)
        self.state_file = state_file

    @property
    def both(self) -> tuple[int, int]:
        """The descriptors of output and errors."""
        return self.out, self.err

    def state(self, max_bytes: int) -> bytes | None:
        """Return the state in the file; None if it is empty or longer than `max_bytes`."""
        count = size(self.state_file)
        return os.pread(self.state_file, count, 0) if 0 < count <= max_bytes else None

    def close(self) -> None:
        """Close all files."""
        for fd in (*self.both, self.state_file):
            if fd >= 0:
                os.close(fd)
