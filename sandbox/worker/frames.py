"""What judge, worker, forker and child say to each other, in fixed binary forms that hold nothing of a program.

Judge to worker, and on to the forker: one packet (`Order`); the forker answers with a pid. Worker to judge: one packet
(`Exit`). Four files that all have open: payload (program and inputs, read by the child only), out, err and log. Child
to judge: `Record`s in the log, which are claims, not facts.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

STDIN, FUNCTION, SELF_TEST, NATIVE, MANAGED = range(5)

LEAVE = 213
"""Exit code of a child that stops between two tests, to go on in a fresh process."""
SETUP_FAILED = 214
"""Exit code of a child whose walls did not go up; nothing of the program ran."""

ORDER = struct.Struct("<BddIIIIH")
PID = struct.Struct("<i")
_EXIT = struct.Struct("<iBddQ")
RECORD = struct.Struct("<IBddQQI")
RECORD_BYTES = RECORD.size


class Order(NamedTuple):
    """One process to run, and what it may use."""

    kind: int
    wall_s: float
    cpu_s: float
    memory_mib: int
    output_kib: int
    disk_mib: int
    processes: int
    tests: int

    def pack(self) -> bytes:
        """The order as a packet."""
        return ORDER.pack(
            self.kind,
            self.wall_s,
            self.cpu_s,
            self.memory_mib,
            self.output_kib,
            self.disk_mib,
            self.processes,
            self.tests,
        )

    @staticmethod
    def unpack(packet: bytes) -> Order:
        """The order in a packet."""
        return Order(*ORDER.unpack(packet))


CANCEL = b"cancel"

ENDED, WALL, CPU, CANCELLED, DISK, MEMORY, OUTPUT, PROCESSES = range(8)


class Exit(NamedTuple):
    """How a process ended, as its parent saw it: wait status, why it was killed, CPU and wall seconds, peak KiB."""

    status: int
    why: int
    cpu_s: float
    wall_s: float
    peak_kib: int

    def pack(self) -> bytes:
        """The exit as a packet."""
        return _EXIT.pack(self.status, self.why, self.cpu_s, self.wall_s, self.peak_kib)

    @staticmethod
    def unpack(packet: bytes) -> Exit:
        """The exit in a packet."""
        return Exit(*_EXIT.unpack(packet))


FINISHED, RAISED, NO_MEMORY, BAD_VALUE = range(4)


class Record(NamedTuple):
    """One test as the child tells it: where its output and errors end, and the bytes of its value, if any."""

    code: int
    state: int
    cpu_s: float
    wall_s: float
    out_end: int
    err_end: int
    value: bytes

    def pack(self) -> bytes:
        """The record as bytes."""
        head = RECORD.pack(
            self.code & 0xFF, self.state, self.cpu_s, self.wall_s, self.out_end, self.err_end, len(self.value)
        )
        return head + self.value


def read_records(data: bytes, most: int) -> list[Record]:
    """The records in a log, up to `most`, in order; what is torn or impossible ends the list."""
    found: list[Record] = []
    at, out_end, err_end = 0, 0, 0
    while len(found) < most and at + RECORD_BYTES <= len(data):
        code, state, cpu, wall, out, err, size = RECORD.unpack_from(data, at)
        at += RECORD_BYTES
        if at + size > len(data) or out < out_end or err < err_end or state > BAD_VALUE:
            break
        found.append(Record(code, state, cpu, wall, out, err, data[at : at + size]))
        out_end, err_end, at = out, err, at + size
    return found


def pack_payload(program: bytes, items: Sequence[bytes]) -> bytes:
    """Program and inputs as the child reads them."""
    return marshal.dumps((program, list(items)), 2)


unpack_payload: Callable[[bytes], tuple[bytes, list[bytes]]] = marshal.loads
"""Program and inputs. Not for bytes from a child: only the judge writes a payload."""
