"""Fewer pages and mappings for what a fork copies, and a short life of the copy writes to: both pay for each.

A page of objects that a child writes to is copied, and taking a reference is a write. Objects made together lie in few
pages only where no holes are left among older ones: so those are filled first.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from types import FunctionType
from typing import Any

_READ, _WRITE, _EXECUTE = 1, 2, 4
_SIZES = range(48, 513, 16)
_EMPTY = sys.getsizeof(b"")
_PAGE, _POOL, _HEAD = 4 << 10, 16 << 10, 48
_LARGEST = 8 << 10
_LARGER = [*range(_LARGEST, 1040, -1024), *range(1040, 512, -16)]
_MOST_HOLES = 4096
_filled: list[object] = []
LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ +(/.*)")


def join_libraries() -> int:
    """Undo what splits each library: code from constants, and data from a stretch that is only read after loading.

    Every mapping costs a fork and an exit, one with pages of its own as much as fifteen pages. How many were joined to
    the one before. Nothing is given away: a program could do the same.
    """
    rows = [row for row in map(LINE.fullmatch, mappings().splitlines()) if row is not None]
    libc, count = ctypes.PyDLL(None), 0
    for row, after in itertools.pairwise(rows):
        if (row[2], row[4]) != (after[1], after[4]):
            continue
        if (row[3], after[3]) == ("r--p", "rw-p"):
            count += _protect(libc, row, _READ | _WRITE)
        elif {row[3], after[3]} == {"r--p", "r-xp"}:
            count += _protect(libc, row if row[3] == "r--p" else after, _READ | _EXECUTE)
    return count


def _protect(libc: ctypes.PyDLL, row: re.Match[str], allowed: int) -> bool:
    start = int(row[1], 16)
    size = ctypes.c_size_t(int(row[2], 16) - start)
    return int(libc.mprotect(ctypes.c_void_p(start), size, ctypes.c_int(allowed))) == 0


def mappings() -> str:
    """This process's mappings; nothing where the machine does not tell."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            return maps.read()
    except OSError:
        return ""


def fill_holes() -> None:
    """Take what is free among small objects and in the heap, so that what is made next lies close together.

    CPython keeps a pool for every size. Of each, a page with the pool's head is left free: to take an object writes to
    the head as well, and so one page will do for both.
    """
    for size in _SIZES:
        room, pages = (_PAGE - _HEAD) // size, defaultdict[int, list[bytes]](list)
        for _ in range(_MOST_HOLES):
            block = bytes(size - _EMPTY)
            page = pages[number := id(block) // _PAGE]
            page.append(block)
            if len(page) == room and number * _PAGE % _POOL == 0:
                page.sort(key=id)
                del block
                while page:
                    page.pop()  # the lowest last: it will be the first to be taken
                break
        _filled.extend(block for page in pages.values() for block in page)
    end = id(bytes(_LARGEST))  # too large for a hole: it lies where the heap ends
    for size in _LARGER:
        for _ in range(_MOST_HOLES):
            block = bytes(size - _EMPTY)
            if id(block) >= end:
                break
            _filled.append(block)


def renew(space: dict[str, Any], functions: Iterable[str] = ()) -> None:
    """Put copies of these functions, and of all that is a `partial`, into a module's namespace."""
    _filled.extend(space.values())  # what is freed now would be the room of the next copy
    space |= {n: partial(value.func, *value.args) for n, value in space.items() if type(value) is partial}
    codes = {name: space[name].__code__.replace() for name in functions}
    space |= {
        n: FunctionType(c, (old := space[n]).__globals__, old.__name__, old.__defaults__) for n, c in codes.items()
    }
