"""The answers of a keeper to its orders, and the small files that go with it."""

from __future__ import annotations

import hashlib
import marshal
import os
from typing import Any

from . import kernel
from .rooms import Refused

_MOST_PACKET = 256 << 10
_MSG_PEEK, _MSG_DONTWAIT = 2, 64


def digest(packed: bytes) -> str:
    """Return a short name of a session's files."""
    return hashlib.sha256(packed).hexdigest()


def answer(
    status: int | None, state: int, code: int, why: int, ends: tuple[int, int] = (0, 0), cpu: float = 0.0
) -> dict[str, Any]:
    """Return the answer to a call: the wait status of a process that died, else what the interpreter claimed."""
    return {"status": status, "state": state, "code": code, "why": why, "begins": (0, 0), "ends": ends, "cpu": cpu,
            "wall": 0.0, "alive": True}  # fmt: skip


def failure(problem: Exception) -> dict[str, Any]:
    """Return the answer to an order that failed: by the machine, or by the order itself."""
    if isinstance(problem, OSError):
        return {"broken": str(problem)}
    is_plain = isinstance(problem, Refused)
    return {"refused": str(problem) if is_plain else f"{type(problem).__name__}: {problem!a:.300}"}


def wait_status(info: Any) -> int:
    """Return the wait status that the answer of waitid(2) describes."""
    return int(info.si_status) << 8 if info.si_code == os.CLD_EXITED else int(info.si_status)


def size(fd: int) -> int:
    """Return the size of an open file."""
    return os.fstat(fd).st_size


def tail(fd: int) -> str:
    """Return the first words of an open file of errors."""
    return os.pread(fd, 500, 0).decode(errors="replace")


def file(data: bytes) -> int:
    """Return a file in memory that holds the data."""
    fd = os.memfd_create("data", os.MFD_CLOEXEC)
    view = memoryview(data)
    at = 0
    while at < len(data):
        at += os.pwrite(fd, view[at:], at)
    return fd


class Owner:
    """The caller's end of a session."""

    def __init__(self, connection: int) -> None:
        import _socket

        self.sock = _socket.socket(fileno=connection)

    @property
    def is_gone(self) -> bool:
        """True if the owner has closed its end."""
        try:
            return not self.sock.recv(1, _MSG_PEEK | _MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def reply(self, answer: dict[str, Any], files: list[int] | None = None) -> None:
        """Answer the owner, who waits for one answer to each order."""
        import array

        ancillary = [(1, 1, array.array("i", files))] if files else []
        try:
            self.sock.sendmsg([marshal.dumps(answer, 2)], ancillary)
        except OSError:  # the owner is gone, which `hear` will see
            return

    def hear(self) -> tuple[dict[str, Any] | None, list[int]]:
        """Return the owner's order, None if it is gone, and the descriptors that came with it."""
        try:
            packet, files = kernel.receive(self.sock.fileno(), _MOST_PACKET)
        except OSError:
            packet, files = b"", []
        return marshal.loads(packet) if packet else None, files


class Outputs:
    """The files to which programs of a session write: output, errors, and the state that the last one leaves."""

    def __init__(self) -> None:
        self.out, self.err = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("out", "err"))
        self.left = -1

    def empty(self) -> None:
        """Empty output and errors."""
        for fd in self.both:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)

    def sizes(self) -> tuple[int, int]:
        """Return the sizes of output and errors."""
        return size(self.out), size(self.err)

    def within(self, out: int, err: int) -> tuple[int, int]:
        """Return ends of output and errors that a program has claimed, and no more than there is."""
        return min(out, size(self.out)), min(err, size(self.err))

    def keep(self, left: int) -> None:
        """Take another file for the state."""
        if self.left >= 0:
            os.close(self.left)
        self.left = left

    @property
    def both(self) -> tuple[int, int]:
        """The descriptors of output and errors."""
        return self.out, self.err

    def state(self, most: int) -> bytes | None:
        """Return the state that was left, None if there is none of at most `most` bytes."""
        count = size(self.left)
        return os.pread(self.left, count, 0) if 0 < count <= most else None

    def close(self) -> None:
        """Close all."""
        for fd in (*self.both, self.left):
            if fd >= 0:
                os.close(fd)
