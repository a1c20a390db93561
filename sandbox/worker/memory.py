"""What makes a fork of this process cheap, and a short life of the copy: both pay by the page.

A child shares no page table of a file with its parent: it takes a fault for every 16 pages of code that it runs, and
gives each page back when it ends, which was an eighth of what a short run costs. A large page in memory is copied
along, as one entry, when the child is made. So the code is copied to memory once, and moved to where it was.

A page of objects that a child writes to is copied, and taking a reference is a write. Objects made together lie in few
pages only where no holes are left among older ones: so those are filled first.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import sys

LARGE = 2 << 20
_READ, _WRITE, _EXECUTE = 1, 2, 4
_MAP_PRIVATE, _MAP_ANONYMOUS = 2, 32
_MADV_HUGEPAGE = 14
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_FAILED = ctypes.c_void_p(-1).value
_SIZES = range(48, 513, 16)
_EMPTY = sys.getsizeof(b"")
_POOL, _FIRST = 16 << 10, 48
_MOST_HOLES = 1024
_filled: list[list[bytes]] = []
_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ +(/.*)")


def make_code_large() -> int:
    """Move the interpreter's code, as far as it fills large pages; how many bytes were, 0 where nothing can be.

    Only while no other thread runs.
    """
    start, end = stretch(_listing(), ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value or 0)
    start, end = -(-start // LARGE) * LARGE, end // LARGE * LARGE
    return end - start if start < end and _move(start, end - start) else 0


def join_data() -> int:
    """Undo what splits the data of each library in two, a stretch that is only read after loading; how many were.

    Every mapping with pages of its own costs a fork as much as fifteen of them. Nothing is given away: a program could
    undo it as well.
    """
    rows = [row for row in map(_LINE.fullmatch, _listing().splitlines()) if row is not None]
    libc, count = ctypes.PyDLL(None), 0
    for row, after in itertools.pairwise(rows):
        if row[3] == "r--p" and after[3] == "rw-p" and (row[2], row[4]) == (after[1], after[4]):
            start = int(row[1], 16)
            count += not libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(int(row[2], 16) - start), _READ | _WRITE)
    return count


def _listing() -> str:
    """This process's mappings; nothing where the machine does not tell."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            return maps.read()
    except OSError:
        return ""


def fill_holes() -> None:
    """Take what is free in the pools of small objects, so that the next ones come from pools of their own.

    CPython gives every size a pool, whose first object lies behind its head: once one does, a new pool was begun.
    """
    for size in _SIZES:
        taken: list[bytes] = []
        while len(taken) < _MOST_HOLES:
            taken.append(bytes(size - _EMPTY))
            if id(taken[-1]) % _POOL == _FIRST:
                break
        del taken[-1]
        _filled.append(taken)


def stretch(listing: str, address: int) -> tuple[int, int]:
    """Where the adjoining mappings, none of them writable, of the file that is mapped at `address` start and end.

    `listing` is what /proc/PID/maps says. Nothing, at 0, where no file is mapped there.
    """
    start = end = 0
    before = ""
    for row in map(_LINE.fullmatch, listing.splitlines()):
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


def _move(start: int, length: int) -> bool:
    """Put a copy in large pages in the place of what is mapped there."""
    libc, pointer, size, number = ctypes.PyDLL(None), ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = libc.mremap.restype = pointer
    kind, space = _MAP_PRIVATE | _MAP_ANONYMOUS, length + LARGE
    room = libc.mmap(None, size(space), _READ | _WRITE, kind, -1, ctypes.c_long(0))
    if room == _FAILED:
        return False
    copy = -(-room // LARGE) * LARGE
    libc.madvise(pointer(copy), size(length), number(_MADV_HUGEPAGE))  # small ones are no loss
    ctypes.memmove(copy, start, length)
    moved = False
    if libc.mprotect(pointer(copy), size(length), _READ | _EXECUTE) == 0:
        flags = number(_MREMAP_MAYMOVE | _MREMAP_FIXED)
        moved = libc.mremap(pointer(copy), size(length), size(length), flags, pointer(start)) == start
    for low, high in ((room, copy), (copy if not moved else copy + length, room + space)):
        if low < high:
            libc.munmap(pointer(low), size(high - low))
    return moved
