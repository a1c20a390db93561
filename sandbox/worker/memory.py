"""Make forks cheap: fewer mappings to copy, and objects that lie close together.

A fork copies the table of mappings, and then every page that the child writes to. Taking a reference is a write.
Objects made one after another lie in few pages only if no holes are left among older ones: those are filled first.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

READ, WRITE, EXECUTE = 1, 2, 4
_SIZES = range(48, 513, 16)
_EMPTY = sys.getsizeof(b"")
_PAGE, _POOL, _HEAD = 4 << 10, 16 << 10, 48
_LARGEST = 8 << 10
_LARGER = [*range(_LARGEST, 1040, -1024), *range(1040, 512, -16)]
_MOST_HOLES = 4096
_filled: list[object] = []
_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ *(.*)")


class Mapping(NamedTuple):
    """A line of /proc/PID/maps: a range of addresses, its rights, and the file or other name."""

    start: int
    end: int
    rights: str
    name: str


def parse(listing: str) -> list[Mapping]:
    """Return the mappings in the text of a /proc/PID/maps."""
    matches = filter(None, map(_LINE.fullmatch, listing.splitlines()))
    return [Mapping(int(m[1], 16), int(m[2], 16), m[3], m[4]) for m in matches]


def mappings(maps: int | str = "/proc/self/maps") -> list[Mapping]:
    """Return this process's mappings, from the path or an open descriptor; none if the file cannot be read."""
    try:
        fd = os.open(maps, os.O_RDONLY) if isinstance(maps, str) else maps
    except OSError:
        return []
    os.lseek(fd, 0, 0)
    listing = b"".join(iter(lambda: os.read(fd, 1 << 16), b"")).decode("utf-8", "surrogateescape")
    if fd != maps:
        os.close(fd)
    return parse(listing)


def join_libraries() -> int:
    """Give adjoining mappings of a library the same rights, so that they become one; return how many were joined.

    Code is split from constants, and data from a part that is read-only after loading. A mapping costs a fork and an
    exit up to as much as fifteen pages. No wall is weakened, since a program could do the same.
    """
    libc, count = ctypes.PyDLL(None), 0
    for row, after in itertools.pairwise(mappings()):
        if not row.name.startswith("/") or (row.end, row.name) != (after.start, after.name):
            continue
        if (row.rights, after.rights) == ("r--p", "rw-p"):
            count += _protect(libc, row, READ | WRITE)
        elif {row.rights, after.rights} == {"r--p", "r-xp"}:
            count += _protect(libc, row if row.rights == "r--p" else after, READ | EXECUTE)
    return count


def _protect(libc: ctypes.PyDLL, row: Mapping, rights: int) -> bool:
    start, size = ctypes.c_void_p(row.start), ctypes.c_size_t(row.end - row.start)
    return int(libc.mprotect(start, size, ctypes.c_int(rights))) == 0


def fill_holes() -> None:
    """Fill the holes among small objects and in the heap, so that the next objects lie close together.

    CPython keeps pools of objects of one size. For every size, one page with a pool's head is left free: to make an
    object writes to the head too, and so both writes go to the same page.
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
                    page.pop()  # the lowest last, since CPython takes the last freed block first
                break
        _filled.extend(block for page in pages.values() for block in page)
    end = id(bytes(_LARGEST))  # too large for a hole, so it lies at the end of the heap
    for size in _LARGER:
        for _ in range(_MOST_HOLES):
            block = bytes(size - _EMPTY)
            if id(block) >= end:
                break
            _filled.append(block)


def renew(space: dict[str, Any], functions: Iterable[str] = ()) -> None:
    """Replace these functions, and every `partial`, in a module's namespace with copies that lie together."""
    _filled.extend(space.values())  # kept, else the next copy would take the place of a freed original
    space |= {n: partial(value.func, *value.args) for n, value in space.items() if type(value) is partial}
    codes = {name: space[name].__code__.replace() for name in functions}
    space |= {
        n: FunctionType(c, (old := space[n]).__globals__, old.__name__, old.__defaults__) for n, c in codes.items()
    }
