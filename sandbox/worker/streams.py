"""Give every test fresh standard streams, also if the program before has damaged them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from posix import closerange, dup2, ftruncate, lseek, open, pwrite

IN, OUT, ERR, LOG, PAYLOAD, CONTROL, PROGRAM_OUT, PROGRAM_ERR = range(3, 11)
LAST = 64
"""Above the last descriptor of the worker. Descriptors 0, 1 and 2 are the program's."""
_NAMES = ("<stdin>", "<stdout>", "<stderr>")


def move_descriptors(control: int, out: int, err: int, log: int, payload: int) -> None:
    """Move the descriptors that the caller gave to their fixed numbers, before other files get these numbers."""
    inherited = (os.open(os.devnull, os.O_RDONLY), out, err, log, payload, control)
    # In two steps, so that no descriptor that is still needed is overwritten: first to unused numbers above all.
    unused = [fd for fd in range(1 + LAST, 1 + LAST + 2 * len(inherited)) if fd not in inherited]
    moved = [dup2(fd, number, False) for fd, number in zip(inherited, unused, strict=False)]
    for fd in inherited:
        os.close(fd)
    for fd, number in zip(moved, (IN, OUT, ERR, LOG, PAYLOAD, CONTROL), strict=True):
        dup2(fd, number, False)
        os.close(fd)
    for number, name in ((PROGRAM_OUT, "program-out"), (PROGRAM_ERR, "program-err")):
        made = os.memfd_create(name, os.MFD_CLOEXEC)
        if made != number:
            dup2(made, number, False)
            os.close(made)


def open_on(stdin: int) -> None:
    """Make `stdin` the input of all programs, and open Python's streams. Called once per worker."""
    dup2(stdin, IN, False)
    os.close(stdin)
    _open()


def opener(proc: int) -> Callable[[bool], None]:
    """Return a function that opens the files of the next run and closes those of the last. `proc`: descriptor of /proc.

    For the program of a suite (`of_suite`) it opens two others for output and errors, and none for records.

    All runs use the same four files, which the caller empties. But each run opens them again. Flags, offsets, locks and
    leases belong to an open file, so no run finds those that another has set. Both raise OSError.
    """
    folder = os.open("self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    names, of_program = (
        [str(os.dup(fd)) for fd in files]
        for files in ((IN, OUT, ERR, LOG), (IN, PROGRAM_OUT, PROGRAM_ERR, PROGRAM_ERR))
    )

    def reopen(of_suite: bool = False) -> None:
        closerange(IN, PAYLOAD)
        for name in of_program if of_suite else names:  # each gets the lowest number that is free, from IN on
            open(name, os.O_RDWR, dir_fd=folder)
        dup2(IN, 0)
        dup2(OUT, 1)
        dup2(ERR, 2)

    return reopen


def _open() -> None:
    dup2(IN, 0)
    dup2(OUT, 1)
    dup2(ERR, 2)
    sys.stdin = sys.__stdin__ = _text(0, "r")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text(1, "w")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(2, "w")  # type: ignore[misc]


def fill_input(data: bytes, again: bool) -> io.TextIOWrapper:
    """Fill standard input with `data` and return sys.stdout. `again`: open new streams, from the second test on."""
    done, size = pwrite(IN, data, 0), len(data)
    while done < size:
        done += pwrite(IN, memoryview(data)[done:], done)
    ftruncate(IN, size)
    lseek(IN, 0, 0)
    if again:
        _open()
    return sys.stdout  # type: ignore[return-value]


def _text(fd: int, mode: str) -> io.TextIOWrapper:
    """Return a standard stream with the attributes that the interpreter gives it.

    One difference: lines of input that end with a carriage return lose it, as on judges whose tests have such lines.
    """
    raw = io.FileIO(fd, mode, closefd=False)
    raw.name = _NAMES[fd]
    buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    errors = "backslashreplace" if fd == 2 else "surrogateescape"
    stream = io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=fd == 2)
    stream.mode = mode  # type: ignore[misc]
    return stream


def flush(*others: io.TextIOWrapper) -> bool:
    """Flush sys.stdout, `others` and sys.stderr, as the interpreter does at its end. True if all has left them."""
    is_flushed = True
    for stream in (getattr(sys, "stdout", None), *others, getattr(sys, "stderr", None)):  # the program's own, perhaps
        try:
            if stream is not None and not _is_closed(stream):
                stream.flush()
        except AttributeError:  # an own object, which has no flush
            pass
        except BaseException:
            is_flushed = False
    return is_flushed


def _is_closed(stream: object) -> bool:
    """True if the stream is closed or detached, by its own word."""
    try:
        return bool(stream.closed)  # type: ignore[attr-defined]
    except ValueError:
        return True
    except BaseException:
        return False


def output_sizes() -> tuple[int, int]:
    """Return the numbers of bytes of output and of errors."""
    return lseek(OUT, 0, 2), lseek(ERR, 0, 2)
