"""Memory of tensors on the CPU that the C library keeps for the next ones."""

from __future__ import annotations

import ctypes
import functools
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""
_LARGEST_KEPT, _MOST_KEPT = 32 << 20, 256 << 20
"""Bytes: of the largest tensor whose memory is kept (the most that glibc allows), and of all that is kept free."""


@functools.cache
def keep_freed_memory() -> None:
    """Have this process reuse the memory of freed tensors; a caller's own MALLOC_ variables or tunables stay in force.

    glibc gives memory back to the kernel when a tensor is freed, as its luck with the layout of the heap has it, and
    the next tensor pays for each page again: 24,000 page faults and 58 of 880 ms in an update of 0.8M parameters.
    """
    is_set = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not is_set:
        mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
        mallopt(_TRIM_THRESHOLD, _MOST_KEPT)
