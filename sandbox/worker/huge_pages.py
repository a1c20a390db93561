"""Huge pages for the memory that a fork copies: one entry instead of 512.

A child shares no page table of a file with its parent. It has a page fault for every 16 pages of code that it runs, and
gives each page back when it ends, which was an eighth of the time of a short run. Data in small pages is copied entry
by entry. Both are copied to huge pages, which then replace the originals at the same addresses.
"""

from __future__ import annotations

import ctypes

from .memory import EXECUTE, READ, WRITE, Mapping, mappings

_libc = ctypes.PyDLL(None)
_pointer, _size = ctypes.c_void_p, ctypes.c_size_t
_libc.mmap.restype = _pointer
_ADDRESS = {name: ctypes.cast(getattr(_libc, name), _pointer).value for name in ("memcpy", "mprotect", "mremap")}
HUGE = 2 << 20
_LEAST = 512 << 10
_MAP_PRIVATE, _MAP_ANONYMOUS = 2, 32
_MADV_HUGEPAGE = 14
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_FAILED = ctypes.c_void_p(-1).value
_CONTEXT, _STACK = 8 << 10, 32 << 10
_LINK, _STACK_AT, _STACK_SIZE = 1, 2, 4
"""Words of a ucontext_t on all 64-bit machines: the next context, and the address and the size of its stack."""


def move_code() -> int:
    """Move the interpreter's code, as far as it fills huge pages; return the number of bytes, 0 if none can move."""
    start, end = stretch(mappings(), ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value or 0)
    start, end = -(-start // HUGE) * HUGE, end // HUGE * HUGE
    return _move([(start, end)], READ | EXECUTE) if start < end else 0


def move_data(maps: int) -> int:
    """Move the interpreter's data and objects; return the number of bytes. `maps` is an open /proc/self/maps.

    No other thread may run meanwhile.
    """
    spans = []
    for start, end, rights, name in mappings(maps):
        # Of files, only the one that holds None: the interpreter's own data.
        ours = name in ("", "[heap]") or (name.startswith("/") and start <= id(None) < end)
        if rights == "rw-p" and ours and end - start >= _LEAST:
            spans.append((start, end))
    return _move(spans, READ | WRITE) if spans else 0


def stretch(rows: list[Mapping], address: int) -> tuple[int, int]:
    """Return start and end of the adjoining mappings, none writable, of the file that is mapped at `address`.

    Both are 0 if no file is mapped there.
    """
    start = end = 0
    before = ""
    for row in rows:
        if row.rights not in ("r--p", "r-xp") or not row.name.startswith("/"):
            before = ""
            continue
        if row.name != before or row.start != end:
            if start <= address < end:
                break
            start, before = row.start, row.name
        end = row.end
    return (start, end) if start <= address < end else (0, 0)


def _move(spans: list[tuple[int, int]], rights: int) -> int:
    """Replace these ranges by copies in huge pages; return the number of bytes.

    It must leave no cycle of objects, because the forker calls it again and again and collects no garbage.
    """
    if not hasattr(_libc, "makecontext"):
        return 0
    total = sum(end - start for start, end in spans)
    kind, space = _MAP_PRIVATE | _MAP_ANONYMOUS, total + 3 * HUGE
    room = _libc.mmap(None, _size(space), READ | WRITE, kind, -1, ctypes.c_long(0))
    if room == _FAILED:
        return 0
    at = first = -(-room // HUGE) * HUGE
    # If the kernel refuses, the copies are in small pages, which does no harm.
    _libc.madvise(_pointer(first), _size(-(-total // HUGE) * HUGE), _MADV_HUGEPAGE)
    steps, flags = room + space - HUGE, _MREMAP_MAYMOVE | _MREMAP_FIXED
    for start, end in spans:
        length = end - start
        calls = [("memcpy", (at, start, length)), ("mremap", (at, length, length, flags, start))]
        if rights != READ | WRITE:
            calls.insert(1, ("mprotect", (at, length, rights)))
        _call_in_a_row(steps, calls)
        at += length
    _libc.munmap(_pointer(room), _size(space))  # except the moved ranges, which are no longer there
    return total


def _call_in_a_row(room: int, calls: list[tuple[str, tuple[int, ...]]]) -> None:
    """Call functions of libc one after another, with stacks in `room`.

    The interpreter does not run in between, since it would write to the memory that is being moved.
    """
    contexts = [room + i * (_CONTEXT + _STACK) for i in range(len(calls) + 1)]
    for here, after, (name, arguments) in zip(contexts[1:], [*contexts[2:], room], calls, strict=True):
        _libc.getcontext(_pointer(here))
        words = (_size * (_STACK_SIZE + 1)).from_address(here)
        words[_LINK], words[_STACK_AT], words[_STACK_SIZE] = after, here + _CONTEXT, _STACK
        _libc.makecontext(_pointer(here), _pointer(_ADDRESS[name]), len(arguments), *map(_size, arguments))
    _libc.swapcontext(_pointer(room), _pointer(contexts[1]))
