"""What judge, zygote and child say to each other, in fixed binary forms that hold nothing of a program.

Judge to zygote: one packet (`Order`). Four files that both have open: payload (program and inputs, read by the child
only), out, err and log. Zygote to judge: one packet (`Exit`). Child to judge: `Record`s in
the log, which are claims, not facts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

STDIN, FUNCTION, SELF_TEST, NATIVE, MANAGED = range(5)

LEAVE = 213
"""Exit code of a child that stops between two tests, to go on in a fresh process."""
SETUP_FAILED = 214
"""Exit code of a child whose walls did not go up; nothing of the program ran."""

_ORDER = struct.Struct("<BddIIIIH")
_EXIT = struct.Struct("<iBddQ")
_RECORD = struct.Struct("<IBddQQI")
RECORD_BYTES = _RECORD.size


@dataclass(frozen=True, slots=True)
class Order:
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
        return _ORDER.pack(*astuple(self))

    @staticmethod
    def unpack(packet: bytes) -> Order:
        """The order in a packet."""
        return Order(*_ORDER.unpack(packet))


CANCEL = b"cancel"

ENDED, WALL, CPU, CANCELLED, DISK, MEMORY, OUTPUT = range(7)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended, as its parent saw it: wait status, why it was killed, CPU and wall seconds, peak KiB."""

    status: int
    why: int
    cpu_s: float
    wall_s: float
    peak_kib: int

    def pack(self) -> bytes:
        """The exit as a packet."""
        return _EXIT.pack(*astuple(self))

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
        head = _RECORD.pack(
            self.code & 0xFF, self.state, self.cpu_s, self.wall_s, self.out_end, self.err_end, len(self.value)
        )
        return head + self.value


def read_records(data: bytes, most: int) -> list[Record]:
    """The records in a log, up to `most`, in order; what is torn or impossible ends the list."""
    found: list[Record] = []
    at, out_end, err_end = 0, 0, 0
    while len(found) < most and at + RECORD_BYTES <= len(data):
        code, state, cpu, wall, out, err, size = _RECORD.unpack_from(data, at)
        at += RECORD_BYTES
        if at + size > len(data) or out < out_end or err < err_end or state > BAD_VALUE:
            break
        found.append(Record(code, state, cpu, wall, out, err, data[at : at + size]))
        out_end, err_end, at = out, err, at + size
    return found


def pack_payload(program: bytes, items: Sequence[bytes]) -> bytes:
    """Program and inputs as the child reads them."""
    sizes = [len(program), *map(len, items)]
    return struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes) + program + b"".join(items)


def unpack_payload(data: bytes) -> tuple[bytes, list[bytes]]:
    """Program and inputs."""
    (count,) = struct.unpack_from("<I", data)
    sizes = struct.unpack_from(f"<{count}Q", data, 4)
    at, parts = 4 + 8 * count, []
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return parts[0], parts[1:]
