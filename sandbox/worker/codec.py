"""Values as bytes, by exact type, with bounds: the arguments and the returned values of functions.

Used on both sides. The bytes that come back were written by an untrusted process: `decode` builds only plain values,
never runs anything, and refuses a value that is too large or too deep. An object of any other type becomes `Opaque`,
which equals nothing, so no `__eq__` or `__class__` of the program's own is ever called.
"""

from __future__ import annotations

import collections
import json
import math
from typing import Any

MAX_DEPTH = 200
MAX_INT_BITS = 1_000_000
_LISTS = (list, collections.deque)
_DICTS = (dict, collections.defaultdict, collections.OrderedDict, collections.Counter)
_SIZED = (*_LISTS, *_DICTS, tuple, set, frozenset, bytes, bytearray)
_SAFE_INT = 1 << 53


class Unencodable(ValueError):
    """The value is too deep or too large."""


class Opaque:
    """An object that a program returned and whose type is not a plain value."""

    __slots__ = ("type_name",)

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def __repr__(self) -> str:
        return f"<{self.type_name}>"


def encode(value: object, max_items: int = 1 << 40) -> bytes:
    """Return the value as bytes that keep tuples, sets, bytes, complex numbers and keys other than strings apart.

    Raises: Unencodable past 200 levels, a million bits of an integer, `max_items` in one container, or on a loop.
    """
    packed = _pack(value, 0, max_items)
    return json.dumps(packed, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def _pack(value: Any, depth: int, most: int) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        if -_SAFE_INT < value < _SAFE_INT:
            return value
        if int.bit_length(value) > MAX_INT_BITS:
            raise Unencodable(f"an integer of {int.bit_length(value)} bits is more than {MAX_INT_BITS}")
        return {"i": format(value, "x")}
    if kind is float:
        return {"f": value.hex() if math.isfinite(value) else repr(value)}
    if depth >= MAX_DEPTH:
        raise Unencodable(f"nested deeper than {MAX_DEPTH}")
    if kind in _SIZED and len(value) > most:
        raise Unencodable(f"{len(value)} items are more than {most}")
    if kind in _LISTS:
        return [_pack(x, depth + 1, most) for x in value]
    if kind is tuple or (tuple in kind.__mro__ and hasattr(kind, "_fields")):
        return {"t": [_pack(x, depth + 1, most) for x in tuple.__iter__(value)]}
    if kind in _DICTS:
        return {"d": [[_pack(k, depth + 1, most), _pack(v, depth + 1, most)] for k, v in dict.items(value)]}
    if kind in (set, frozenset):
        return {"s": [_pack(x, depth + 1, most) for x in value]}
    if kind in (bytes, bytearray):
        return {"b": bytes(value).hex()}
    if kind is complex:
        return {"c": [_pack(value.real, depth, most), _pack(value.imag, depth, most)]}
    if kind is range:
        return {"r": [_pack(x, depth, most) for x in (value.start, value.stop, value.step)]}
    return {"o": str(value.type_name if kind is Opaque else kind.__name__)[:100]}


def decode(data: bytes) -> Any:
    """Return the value of these bytes. Raises: ValueError on bytes that `encode` would not have written."""
    try:
        return _unpack(json.loads(data), 0)
    except (RecursionError, KeyError, TypeError, AttributeError, OverflowError) as exc:
        raise ValueError(f"not an encoded value: {type(exc).__name__}") from exc


def _unpack(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, list):
        return [_unpack(x, depth + 1) for x in value]
    if not isinstance(value, dict):
        if isinstance(value, float):
            raise ValueError("a bare float")
        return value
    ((tag, body),) = value.items()
    if tag == "i" and len(body) <= MAX_INT_BITS // 4 + 2:
        return int(body, 16)
    if tag == "f":
        return float.fromhex(body)
    if tag == "b":
        return bytes.fromhex(body)
    if tag == "o":
        return Opaque(str(body))
    items = body if tag == "d" else [_unpack(x, depth + 1) for x in body]
    if tag == "t":
        return tuple(items)
    if tag == "s":
        return frozenset(_hashable(x) for x in items)
    if tag == "d":
        return {_hashable(_unpack(k, depth + 1)): _unpack(v, depth + 1) for k, v in items}
    if tag == "c":
        real, imaginary = items
        return complex(real, imaginary)
    if tag == "r":
        start, stop, step = items
        return range(start, stop, step)
    raise ValueError(f"unknown tag {tag!r}")


def _hashable(value: Any) -> Any:
    """Return the value. Raises: TypeError if it cannot be a key."""
    hash(value)
    return value
