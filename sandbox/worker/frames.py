"""Binary messages between the caller, the worker, the forker and the child that runs a program.

The caller sends the worker one packet per run (`Order`), which the worker passes on; the forker answers with a process
id. When the child has ended, the worker sends the caller one packet (`Exit`). All four have the same files open: the
payload (program and inputs, read by the child only), out, err and log. The child writes one `Record` per test to the
log. Records come from an untrusted process: a program can forge them.
"""

from __future__ import annotations

import json
import marshal
import os
import struct
from collections.abc import Callable, Sequence
from posix import read, write
from typing import Any, NamedTuple

NAMESPACES, LANDLOCK, SECCOMP, UID, CGROUP = "namespaces", "landlock", "seccomp", "uid", "cgroup"
"""The walls, as they are named in settings and reports."""
STDIN, FUNCTION, SELF_TEST, NATIVE, MANAGED, SUITE = range(6)
LINK = (7, 8)
"""Descriptors of the two processes of a suite, by which they talk: to read from, and to write to."""
MODULES = ("solution", "main", "your_module")
"""Names by which tests import the program."""
LEAVE = 213
"""Exit code of a child that stops between two tests, so that the rest runs in a fresh process."""
SETUP_FAILED = 214
"""Exit code of a child whose walls did not go up. Nothing of the program has run."""
MAX_TEXT_BYTES = 120 << 10
"""Bytes of a cell or a line of a session: they travel in one packet, and a line is one argument of the shell."""
ORDER = struct.Struct("<BddIIIIH")
PID = struct.Struct("<i")
_EXIT = struct.Struct("<iBddQ")
RECORD = struct.Struct("<IBQQI")
_SIZE = struct.Struct("<Q")
RECORD_BYTES = RECORD.size


class Order(NamedTuple):
    """One process to run, with its limits and its number of tests."""

    kind: int
    wall_s: float
    cpu_s: float
    memory_mib: int
    output_kib: int
    disk_mib: int
    processes: int
    tests: int

    def pack(self) -> bytes:
        """Return the order as a packet."""
        return ORDER.pack(*self)

    @staticmethod
    def unpack(packet: bytes) -> Order:
        """Return the order in a packet."""
        return Order(*ORDER.unpack(packet))


ENDED, WALL, CPU, DISK, MEMORY, OUTPUT, PROCESSES, LEFT_OVER = range(8)


class Exit(NamedTuple):
    """The end of a process as its parent saw it.

    `status` is the wait status, or -1 if no process ran; then `why` is the error number. Else `why` is the limit at
    which the worker killed it, or ENDED if it ended by itself. LEFT_OVER: a suite's program that outlived its tests.
    """

    status: int
    why: int
    cpu_s: float
    wall_s: float
    peak_kib: int

    def pack(self) -> bytes:
        """Return the exit as a packet."""
        return _EXIT.pack(*self)

    @staticmethod
    def unpack(packet: bytes) -> Exit:
        """Return the exit in a packet."""
        return Exit(*_EXIT.unpack_from(packet))

    @staticmethod
    def unpack_second(packet: bytes) -> Exit | None:
        """Return the second exit in a packet, that of a suite's program; None if there is one only."""
        return Exit(*_EXIT.unpack_from(packet, _EXIT.size)) if len(packet) > _EXIT.size else None


FINISHED, RAISED, NO_MEMORY, BAD_VALUE = range(4)


class Record(NamedTuple):
    """One test as the child reports it: where its output and errors end, and the bytes of its value, if any."""

    code: int
    state: int
    out_end: int
    err_end: int
    value: bytes

    def pack(self) -> bytes:
        """Return the record as bytes."""
        *head, value = self
        return RECORD.pack(*head, len(value)) + value


def read_records(data: bytes, max_records: int) -> list[Record]:
    """Return up to `max_records` records from a log, in order. A torn or impossible record ends the list."""
    records: list[Record] = []
    offset, out_end, err_end = 0, 0, 0
    while len(records) < max_records and offset + RECORD_BYTES <= len(data):
        code, state, out, err, size = RECORD.unpack_from(data, offset)
        offset += RECORD_BYTES
        # Ends never decrease: a forged record must not give a test the output of another.
        if offset + size > len(data) or out < out_end or err < err_end or state > BAD_VALUE:
            break
        records.append(Record(code, state, out, err, data[offset : offset + size]))
        out_end, err_end, offset = out, err, offset + size
    return records


def pack_payload(program: bytes, items: Sequence[bytes]) -> bytes:
    """Return the program and its inputs as the bytes that the child reads."""
    return marshal.dumps((program, list(items)), 2)


def pack_suite(program: bytes, tests: Sequence[bytes]) -> bytes:
    """Return a payload of two parts: the program, which only its own process reads, and the tests likewise."""
    return _SIZE.pack(len(program)) + program + marshal.dumps(list(tests), 2)


def read_suite(fd: int, of_tests: bool) -> Any:
    """Return the program of a suite, or its tests, from an open payload. The other part is not read."""
    (size,) = _SIZE.unpack(os.pread(fd, _SIZE.size, 0))
    begin = _SIZE.size + size
    if not of_tests:
        return os.pread(fd, size, _SIZE.size)
    return marshal.loads(os.pread(fd, os.fstat(fd).st_size - begin, begin))


unpack_payload: Callable[[bytes], tuple[bytes, list[bytes]]] = marshal.loads
"""Return the program and its inputs. Only the caller writes a payload: marshal must never read a child's bytes."""
_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 16


class Gone(BaseException):
    """The other process has ended."""


class Forged(BaseException):
    """The other process has sent what no honest end sends, or too much; the message says what."""


class Link:
    """One end of the link. A frame of more than `max_bytes` is refused before it is read."""

    def __init__(self, reads: int, writes: int, max_bytes: int) -> None:
        self.reads, self.writes, self.max_bytes = reads, writes, max_bytes
        self.is_begun = False
        """True once a part of the last frame is written: the other process was there then."""
        self._encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
        self._decode = json.JSONDecoder().decode

    def send(self, frame: list[Any]) -> None:
        """Send a frame. Raises: Gone; ValueError if it is too long for the other end."""
        data = self._encode(frame).encode("ascii")
        if len(data) > self.max_bytes:
            raise ValueError(f"a value of more than {self.max_bytes >> 20} MiB")
        view = memoryview(_LENGTH.pack(len(data)) + data)
        self.is_begun = False
        try:
            while view:
                view = view[write(self.writes, view) :]
                self.is_begun = True
        except OSError as exc:
            raise Gone(str(exc)) from exc

    def receive(self) -> list[Any]:
        """Return the next frame. Raises: Gone; Forged."""
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if size > self.max_bytes:
            raise Forged(f"a value of more than {self.max_bytes >> 20} MiB")
        try:
            frame = self._decode(self._read(size).decode("ascii"))
        except (ValueError, RecursionError) as exc:
            raise Forged(f"what is no frame: {type(exc).__name__}") from exc
        if not isinstance(frame, list) or not frame:
            raise Forged("what is no frame")
        return frame

    def _read(self, size: int) -> bytes:
        parts, missing = [], size
        while missing:
            try:
                part = read(self.reads, min(missing, _CHUNK))
            except OSError as exc:
                raise Gone(str(exc)) from exc
            if not part:
                raise Gone("its end of the link is closed")
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
