"""Standard streams of one test after another, in a process that may do to them what it likes."""

from __future__ import annotations

import io
import os
import sys
from posix import dup2, ftruncate, lseek, pwrite

IN, OUT, ERR, LOG, PAYLOAD, CONTROL = 3, 4, 5, 6, 7, 8
LAST = 64
"""Where the worker's descriptors stay while 0, 1 and 2 are the program's.

They are the same files for every run: emptied by the judge when the process that wrote to them is dead.
"""


def stow(control: int, out: int, err: int, log: int, payload: int) -> None:
    """In the worker, first of all: move the descriptors to their places, before others are opened there."""
    given = (os.open(os.devnull, os.O_RDONLY), out, err, log, payload, control)
    clear = [dup2(fd, 100 + i, False) for i, fd in enumerate(given)]  # beyond every place: none is overwritten
    for fd in given:
        os.close(fd)
    for fd, place in zip(clear, (IN, OUT, ERR, LOG, PAYLOAD, CONTROL), strict=True):
        dup2(fd, place, False)
        os.close(fd)


def open_on(stdin: int) -> None:
    """In the worker, once: make `stdin` the programs' input, and open the streams of the first test of each run."""
    dup2(stdin, IN, False)
    os.close(stdin)
    _open()


def _open() -> None:
    dup2(IN, 0)
    dup2(OUT, 1)
    dup2(ERR, 2)
    sys.stdin = sys.__stdin__ = _text(0, "r")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text(1, "w")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(2, "w")  # type: ignore[misc]


def give(data: bytes, again: bool) -> io.TextIOWrapper:
    """Standard input holding `data`; sys.stdout is returned. The first time the worker's own streams will do."""
    ftruncate(IN, 0)
    done = pwrite(IN, data, 0) if data else 0
    while done < len(data):
        done += pwrite(IN, memoryview(data)[done:], done)
    lseek(IN, 0, 0)
    if again:
        _open()
    return sys.stdout  # type: ignore[return-value]


def _text(fd: int, mode: str) -> io.TextIOWrapper:
    raw = io.FileIO(fd, mode, closefd=False)
    buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    if fd == 2:
        return io.TextIOWrapper(buffer, "utf-8", "backslashreplace", line_buffering=True)
    return io.TextIOWrapper(buffer, "utf-8", "surrogateescape")


def flush(stdout: io.TextIOWrapper) -> bool:
    """Whether all that the program printed has left its buffers."""
    fine = True
    for stream in (sys.stdout, stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError, MemoryError):
            fine = False
        except AttributeError:  # an object of the program's own that cannot be flushed
            pass
    return fine


def ends() -> tuple[int, int]:
    """How many bytes of output and of errors there are."""
    return lseek(OUT, 0, 2), lseek(ERR, 0, 2)
