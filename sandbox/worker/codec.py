"""Values as bytes, by exact type, with bounds: the arguments and the returned values of functions.

Used on both sides. `decode` reads bytes of our own side, `read` those of an untrusted process: it makes only plain
values, never runs anything, and refuses a value that is too large or too deep. An object of any other type
becomes `Opaque`, which equals nothing, so no `__eq__` or `__class__` of the program's own is ever called.

A program can choose thousands of integers with one hash, and Python takes hours to make a set of them. So `read` hashes
none: a set becomes `Members`, a dict with keys other than text `Pairs`. The hash of a text cannot be chosen.
"""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

MAX_DEPTH = 200
"""Levels of a value that a program returns."""
MAX_ITEMS = 1 << 20
"""Items of a value that a program returns, all containers together. They are counted before the value is parsed."""
MAX_INT_BITS = 1_000_000
_EXTRA_LEVELS = 16
"""Levels that our side may add around a returned value, e.g. as an argument of the next call."""
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


class Unhashed:
    """Items of a set or dict that a program returned, in a tuple: Python's own set or dict would hash each item."""

    __slots__ = ("items",)

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = tuple(items)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class Members(Unhashed):
    """The members of a set. Equal to a set of the same members, in any order."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Members, set, frozenset)) and key_text(self) == key_text(other)

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self.items))}}}" if self.items else "set()"


class Pairs(Unhashed):
    """The (key, value) pairs of a dict. Equal to a dict of the same pairs, in any order."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        pairs = other.items() if isinstance(other, dict) else other
        return isinstance(other, (dict, Pairs)) and by_key(self) == by_key(pairs)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{k!r}: {v!r}' for k, v in self.items)}}}"


def key_text(value: Any) -> str:
    """Return a text that is equal for equal keys or members, and by which they are sorted; 1, 1.0 and True differ.

    Integers are in hexadecimal: the time for decimal digits grows with the square of their number.
    """
    kind = type(value)
    if kind is int:
        return f"int:{value:x}"
    if kind in (tuple, list):
        return f"({','.join(map(key_text, value))})"
    if kind in (Members, set, frozenset):
        return f"{{{','.join(sorted(map(key_text, value)))}}}"
    if kind is range:
        return f"range:{value.start:x}:{value.stop:x}:{value.step:x}"
    return f"{kind.__name__}:{id(value) if kind is Opaque else repr(value)}"


def by_key(pairs: Iterable[tuple[Any, Any]]) -> list[tuple[str, Any]]:
    """Return the pairs with a text in place of each key, in the order of these texts."""
    return sorted(((key_text(key), value) for key, value in pairs), key=lambda pair: pair[0])


def encode(value: object, max_items: int = 1 << 40) -> bytes:
    """Return the value as bytes that keep tuples, sets, bytes, complex numbers and keys other than strings apart.

    Raises: Unencodable if it is nested too deep or in a loop, or has an integer of over a million bits or a container
    of over `max_items`.
    """
    packed = _pack(value, 0, max_items)
    return json.dumps(packed, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def _pack(value: Any, depth: int, max_items: int) -> Any:
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
    if depth >= MAX_DEPTH + _EXTRA_LEVELS:
        raise Unencodable(f"nested deeper than {MAX_DEPTH + _EXTRA_LEVELS}")
    if kind in _SIZED and len(value) > max_items:
        raise Unencodable(f"{len(value)} items are more than {max_items}")
    if kind in _LISTS:
        return [_pack(x, depth + 1, max_items) for x in value]
    if kind is tuple or (tuple in kind.__mro__ and hasattr(kind, "_fields")):
        return {"t": [_pack(x, depth + 1, max_items) for x in tuple.__iter__(value)]}
    if kind in _DICTS or kind is Pairs:
        pairs = value if kind is Pairs else dict.items(value)
        return {"d": [[_pack(k, depth + 1, max_items), _pack(v, depth + 1, max_items)] for k, v in pairs]}
    if kind in (set, frozenset, Members):
        return {"s": [_pack(x, depth + 1, max_items) for x in value]}
    if kind in (bytes, bytearray):
        return {"b": bytes(value).hex()}
    if kind is complex:
        return {"c": [_pack(value.real, depth, max_items), _pack(value.imag, depth, max_items)]}
    if kind is range:
        return {"r": [_pack(x, depth, max_items) for x in (value.start, value.stop, value.step)]}
    return {"o": str(value.type_name if kind is Opaque else kind.__name__)[:100]}


def decode(data: bytes) -> Any:
    """Return the arguments of a call from our own bytes, also sets and dicts. Raises: ValueError for others."""
    return _value(data, MAX_DEPTH + _EXTRA_LEVELS, True)


def read(data: bytes, of_program: bool = True) -> Any:
    """Return the value of bytes of any side, with no set, and dicts of text keys only. Nothing in it is hashed.

    Time and memory grow with the bytes, which the caller limits. Values of a program have limits of their own too.
    Raises: ValueError on bytes that `encode` would not have written, past `MAX_DEPTH` levels or `MAX_ITEMS` items.
    """
    if not of_program:
        return _value(data, MAX_DEPTH + _EXTRA_LEVELS, False)
    # Every item but the first follows a comma or a bracket. Texts may contain these: count again without texts.
    if len(data) > MAX_ITEMS and _num_marks(data) > MAX_ITEMS:
        without_texts = b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
        if _num_marks(without_texts) > MAX_ITEMS:
            raise ValueError(f"more than {MAX_ITEMS} items")
    return _value(data, MAX_DEPTH, False)


def _num_marks(data: bytes) -> int:
    return sum(map(data.count, (b",", b"[", b"{")))


def _value(data: bytes, levels: int, hashes: bool) -> Any:
    try:
        return _unpack(_DECODER.decode(data.decode("ascii")), levels, hashes)
    except (RecursionError, KeyError, TypeError, AttributeError, OverflowError) as exc:
        raise ValueError(f"not an encoded value: {type(exc).__name__}") from exc


def _small(digits: str) -> int:
    """Return a bare integer. Raises: ValueError if `encode` would have written it in hexadecimal."""
    if len(digits) > 17:
        raise ValueError("a long bare integer")
    return int(digits)


def _refuse(text: str) -> Any:
    raise ValueError("a bare float")


_DECODER = json.JSONDecoder(parse_int=_small, parse_float=_refuse, parse_constant=_refuse)


def _unpack(value: Any, levels: int, hashes: bool) -> Any:
    """Return the value in a parsed text of at most `levels` levels. `hashes`: make Python's sets and dicts."""
    if levels < 0:
        raise ValueError("nested too deep")
    if isinstance(value, list):
        return [_unpack(x, levels - 1, hashes) for x in value]
    if not isinstance(value, dict):
        return value
    ((tag, body),) = value.items()
    if tag == "i" and len(body) <= MAX_INT_BITS // 4 + 2 and (number := int(body, 16)).bit_length() <= MAX_INT_BITS:
        return number
    if tag == "f":
        return float.fromhex(body)
    if tag == "b":
        return bytes.fromhex(body)
    if tag == "o" and isinstance(body, str):
        return Opaque(body[:100])
    if tag == "d":
        pairs = [(_key(_unpack(k, levels - 1, hashes)), _unpack(v, levels - 1, hashes)) for k, v in body]
        return dict(pairs) if hashes or all(type(k) is str for k, _ in pairs) else Pairs(pairs)
    items = [_unpack(x, levels - 1, hashes) for x in body]
    if tag == "t":
        return tuple(items)
    if tag == "s":
        return frozenset(items) if hashes else Members(map(_key, items))
    if tag == "c":
        real, imaginary = items
        return complex(real, imaginary)
    if tag == "r":
        start, stop, step = items
        return range(start, stop, step)
    raise ValueError(f"unknown tag {tag!r}")


def _key(value: Any) -> Any:
    """Return the value. Raises: TypeError if Python could not hash it, as a list or a tuple with a list."""
    if isinstance(value, tuple):
        for item in value:
            _key(item)
    elif isinstance(value, (list, dict, Pairs)):
        raise TypeError(f"a {type(value).__name__} as a key")
    return value
