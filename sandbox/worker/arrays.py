"""Arrays and numbers of numpy on the link of a suite: they travel whole, if their items are plain.

Nothing here imports numpy for a program that has not: a value of it exists only where it is loaded.
"""

from __future__ import annotations

import re
import sys
from typing import Any

_KINDS = "biufcUSmM"
"""Kinds of items that are bytes and nothing else: no objects, no records."""
_ITEM = re.compile(rf"[<>|=][{_KINDS}][1-9]\d{{0,5}}(\[\w{{1,9}}\])?")


def is_array(x: Any) -> bool:
    """True for an array whose items are plain."""
    numpy = sys.modules.get("numpy")
    return type(x) is getattr(numpy, "ndarray", None) and x.dtype.kind in _KINDS and x.dtype.itemsize > 0


def is_number(x: Any) -> bool:
    """True for a number, a text or a date of numpy."""
    numpy = sys.modules.get("numpy")
    generic = getattr(numpy, "generic", None)
    return generic is not None and isinstance(x, generic) and x.dtype.kind in _KINDS and x.dtype.itemsize > 0


def items_of(x: Any) -> str:
    """Return the items, row by row, in hexadecimal. Equal items are the same text object."""
    return sys.intern(x.tobytes().hex())


def filled(kind: str, shape: list[int], items: str) -> Any:
    """Return a new array. Raises: ValueError for a kind that is not plain, or items that do not fill the shape."""
    import numpy as np

    if not _ITEM.fullmatch(kind) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"no array: {kind!r:.20} {shape!r:.60}")
    return np.frombuffer(bytes.fromhex(items), np.dtype(kind)).reshape(shape).copy()


def fill(x: Any, items: str) -> None:
    """Give an array other items."""
    x[...] = filled(x.dtype.str, list(x.shape), items)
