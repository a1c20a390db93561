"""Large pages for what a fork copies: one entry, or one step, for what would be 512.

A child shares no page table of a file with its parent: it takes a fault for every 16 pages of code that it runs, and
gives each page back when it ends, which was an eighth of what a short run costs. Of data, the entries are copied one by
one, and given back so; of pages that lie in one large page, all are taken at once, even where a few were copied since.
Both are moved to where they were: copied to large pages, and these put in the place of what was copied.
"""

from __future__ import annotations

import ctypes
import os
import re

from .memory import LINE, mappings

_libc = ctypes.PyDLL(None)
_pointer, _size = ctypes.c_void_p, ctypes.c_size_t
_libc.mmap.restype = _pointer
_ADDRESS = {name: ctypes.cast(getattr(_libc, name), _pointer).value for name in ("memcpy", "mprotect", "mremap")}
LARGE = 2 << 20
_PAGE = 4 << 10
_LEAST = 128 * _PAGE
_READ, _WRITE, _EXECUTE = 1, 2, 4
_MAP_PRIVATE, _MAP_ANONYMOUS = 2, 32
_MADV_HUGEPAGE = 14
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_FAILED = ctypes.c_void_p(-1).value
_DATA = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ \d+ *(\[heap\]|/.*|)")
_CONTEXT, _STACK = 8 << 10, 32 << 10
_LINK, _STACK_AT, _STACK_SIZE = 1, 2, 4
"""Words of a ucontext_t, on all 64-bit machines: what comes next, where its stack is, and how large."""


def make_code_large() -> int:
    """Move the interpreter's code, as far as it fills large pages; how many bytes were, 0 where nothing can be."""
    start, end = stretch(mappings(), ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value or 0)
    start, end = -(-start // LARGE) * LARGE, end // LARGE * LARGE
    return _move([(start, end)], _READ | _EXECUTE) if start < end else 0


def make_data_large(maps: int) -> int:
    """Move the interpreter's data and objects; how many bytes were. `maps`: an open /proc/PID/maps of this process.

    Only while no other thread runs.
    """
    os.lseek(maps, 0, 0)
    listing = b"".join(iter(lambda: os.read(maps, 1 << 16), b"")).decode("utf-8", "surrogateescape")
    spans = []
    for row in filter(None, map(_DATA.fullmatch, listing.splitlines())):
        start, end = int(row[1], 16), int(row[2], 16)
        if end - start >= _LEAST and (not row[3].startswith("/") or start <= id(None) < end):
            spans.append((start, end))
    return _move(spans, _READ | _WRITE) if spans else 0


def stretch(listing: str, address: int) -> tuple[int, int]:
    """Where the adjoining mappings, none of them writable, of the file that is mapped at `address` start and end.

    `listing` is what /proc/PID/maps says. Nothing, at 0, where no file is mapped there.
    """
    start = end = 0
    before = ""
    for row in map(LINE.fullmatch, listing.splitlines()):
        if row is None or row[3] not in ("r--p", "r-xp"):
            before = ""
            continue
        low, high = int(row[1], 16), int(row[2], 16)
        if row[4] != before or low != end:
            if start <= address < end:
                break
            start, before = low, row[4]
        end = high
    return (start, end) if start <= address < end else (0, 0)


def _move(spans: list[tuple[int, int]], allowed: int) -> int:
    """Put copies in large pages in the place of what is mapped there; how many bytes were.

    It leaves no garbage: the forker, where none is collected, calls it again and again.
    """
    if not hasattr(_libc, "makecontext"):
        return 0
    total = sum(end - start for start, end in spans)
    kind, space = _MAP_PRIVATE | _MAP_ANONYMOUS, total + 3 * LARGE
    room = _libc.mmap(None, _size(space), _READ | _WRITE, kind, -1, ctypes.c_long(0))
    if room == _FAILED:
        return 0
    at = first = -(-room // LARGE) * LARGE
    _libc.madvise(_pointer(first), _size(-(-total // LARGE) * LARGE), _MADV_HUGEPAGE)  # small ones are no loss
    steps, flags = room + space - LARGE, _MREMAP_MAYMOVE | _MREMAP_FIXED
    for start, end in spans:
        length = end - start
        calls = [("memcpy", (at, start, length)), ("mremap", (at, length, length, flags, start))]
        if allowed != _READ | _WRITE:
            calls.insert(1, ("mprotect", (at, length, allowed)))
        _call_in_a_row(steps, calls)
        at += length
    _libc.munmap(_pointer(room), _size(space))  # all but what was moved
    return total


def _call_in_a_row(room: int, calls: list[tuple[str, tuple[int, ...]]]) -> None:
    """Call functions of libc, the next when one returns, with stacks in `room`.

    The interpreter does not run in between: it would write to what is being moved.
    """
    contexts = [room + i * (_CONTEXT + _STACK) for i in range(len(calls) + 1)]
    for here, after, (name, arguments) in zip(contexts[1:], [*contexts[2:], room], calls, strict=True):
        _libc.getcontext(_pointer(here))
        words = (_size * (_STACK_SIZE + 1)).from_address(here)
        words[_LINK], words[_STACK_AT], words[_STACK_SIZE] = after, here + _CONTEXT, _STACK
        _libc.makecontext(_pointer(here), _pointer(_ADDRESS[name]), len(arguments), *map(_size, arguments))
    _libc.swapcontext(_pointer(room), _pointer(contexts[1]))
