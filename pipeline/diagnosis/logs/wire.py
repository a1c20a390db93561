"""Read the fields of a protocol buffer's message without its definition: TensorBoard and W&B write such messages."""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def fields_of(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field: whole numbers, the raw bytes of anything else.

    Raises: ValueError if it is no message.
    """
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place)
        kind = key & 7
        if kind == VARINT:
            number, place = _varint(message, place)
            yield key >> 3, number
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind)
        if kind == BYTES:
            size, place = _varint(message, place)
        if size is None or place + size > end:
            raise ValueError(f"no message: a field of kind {kind} at byte {place}")
        yield key >> 3, message[place : place + size]
        place += size


def text_of(value: int | bytes) -> str:
    """Return the text of a field."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def float_of(value: int | bytes) -> float:
    """Return the number of a field of 4 or 8 bytes."""
    if not isinstance(value, bytes) or len(value) not in (4, 8):
        raise ValueError("no number of 4 or 8 bytes")
    return float(struct.unpack("<f" if len(value) == 4 else "<d", value)[0])


def signed(value: int | bytes) -> int:
    """Return a whole number that may be negative, which is written as one of 64 bits."""
    if not isinstance(value, int):
        raise ValueError("no whole number")
    return value - (1 << 64) if value >= 1 << 63 else value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if place >= len(message) or shift > 63:
            raise ValueError("a number has no end")
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
        shift += 7
