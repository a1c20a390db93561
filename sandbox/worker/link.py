"""The link between the two processes of a suite: frames of JSON over two pipes, each with its length before it.

Both ends check what they read: a frame that is too long, or that is no JSON, is `Forged`. The end that runs the tests
believes nothing of what it reads: it is the program's own output.
"""

from __future__ import annotations

import json
import struct
from posix import read, write
from typing import Any

_SIZE = struct.Struct("<I")
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
        view = memoryview(_SIZE.pack(len(data)) + data)
        self.is_begun = False
        try:
            while view:
                view = view[write(self.writes, view) :]
                self.is_begun = True
        except OSError as exc:
            raise Gone(str(exc)) from exc

    def receive(self) -> list[Any]:
        """Return the next frame. Raises: Gone; Forged."""
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
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
