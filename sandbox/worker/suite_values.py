"""Values on the link of a suite, by exact type, and the identity of what can change.

A value of a plain type travels whole: numbers, texts, bytes, tuples, lists, sets, dicts and their kin in `collections`,
dates, decimals, fractions, ranges, patterns and paths, and arrays and numbers of numpy, if their items are plain. What
can change (lists, dicts, sets, bytearrays, arrays, records) is shared during a call: it is one object for each process,
however often it is named, and `Values.changes` sends what the call has changed. What else travels, each side says.

To decode runs nothing of the other side's: it makes values of known types only, with a bound of depth and of bytes.
"""

from __future__ import annotations

import builtins
import collections
import operator
import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from .frames import Forged

MAX_DEPTH = 150
MAX_INT_BITS = 1_000_000
_PLAIN_INT = 1 << 63
_DIRECT = {type(None), bool, str, float}
"""Types that are equal in JSON."""
_CONTAINERS: dict[type, str] = {
    list: "l", dict: "d", set: "s", bytearray: "y", collections.deque: "q", collections.Counter: "C",
    collections.defaultdict: "D", collections.OrderedDict: "O",
}  # fmt: skip
_TYPES = {tag: kind for kind, tag in _CONTAINERS.items()}
_DICTS = (dict, collections.Counter, collections.defaultdict, collections.OrderedDict)
_VIEWS: dict[type, str] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}
_ARGUMENTS: dict[tuple[str, str], Callable[[Any], Iterable[Any]]] = {
    ("decimal", "Decimal"): lambda x: (str(x),),
    ("fractions", "Fraction"): lambda x: (x.numerator, x.denominator),
    ("datetime", "date"): lambda x: (x.year, x.month, x.day),
    ("datetime", "datetime"): lambda x: (
        x.year, x.month, x.day, x.hour, x.minute, x.second, x.microsecond, x.tzinfo
    ),
    ("datetime", "time"): lambda x: (x.hour, x.minute, x.second, x.microsecond, x.tzinfo),
    ("datetime", "timedelta"): lambda x: (x.days, x.seconds, x.microseconds),
    ("datetime", "timezone"): lambda x: (x.utcoffset(None),),
    ("zoneinfo", "ZoneInfo"): lambda x: (x.key,),
    ("pathlib", "PosixPath"): lambda x: (str(x),),
    ("pathlib", "PurePosixPath"): lambda x: (str(x),),
    ("uuid", "UUID"): lambda x: (str(x),),
    ("array", "array"): lambda x: (x.typecode, x.tobytes()),
    ("re", "Pattern"): lambda x: (x.pattern, x.flags),
}  # fmt: skip
"""Types of the standard library that travel whole, and the arguments that make an equal value."""
_MAKERS = {("re", "Pattern"): "compile"}
_PUBLIC = {"pathlib._local": "pathlib"}
"""Modules by which types call themselves, in Python 3.13, and the ones that have them in every version."""
_SAFE_MODULES = {"builtins", "collections", *(module for module, _ in _ARGUMENTS)}
"""Modules whose types the tests' side takes by name."""
_ARRAY_KINDS = "biufcUSmM"
"""Kinds of items of numpy that are bytes and nothing else: no objects, no records."""
_ARRAY_ITEM = re.compile(rf"[<>|=][{_ARRAY_KINDS}][1-9]\d{{0,5}}(\[\w{{1,9}}\])?")


def _contents(obj: Any) -> list[Any]:
    if type(obj) not in _CONTAINERS:
        if _is_array(obj):
            return [_items_of_array(obj)]
        obj = vars(obj)  # a record
    return [*obj.keys(), *obj.values()] if type(obj) in _DICTS else list(obj)


class Values:
    """Values to JSON and back, with the containers, arrays and records that the present call shares."""

    def __init__(self, is_trusted: bool) -> None:
        self.is_trusted = is_trusted
        """True where the other side is the one with the tests, which may name any part of Python."""
        self.shared: list[tuple[Any, list[Any] | None]] = []
        """Each object that can change, with its items as sent or received; None for a record of which none were."""
        self.numbers: dict[int, int] = {}
        """id() of a shared object -> its place in `shared`, which both sides count alike."""
        self.records: tuple[str, ...] = ()
        """Names of classes that both sides have. Their instances travel by their attributes, as dicts do."""
        self.namespace: dict[str, Any] = {}
        """The names of this side, in which those classes are."""

    def begin_call(self) -> None:
        """Forget what the last call has shared."""
        self.shared.clear()
        self.numbers.clear()

    # To JSON

    def encode(self, x: Any, depth: int = 0) -> Any:
        """Return the value in a form that JSON has. Raises: ValueError if it is nested too deep, or too large."""
        kind = type(x)
        if kind in _DIRECT:
            return x
        if kind is int:
            if -_PLAIN_INT < x < _PLAIN_INT:
                return x
            if x.bit_length() > MAX_INT_BITS:
                raise ValueError(f"an integer of more than {MAX_INT_BITS} bits")
            return ["i", format(x, "x")]
        if depth > MAX_DEPTH:
            raise ValueError(f"a value of more than {MAX_DEPTH} levels")
        if kind in _CONTAINERS:
            return self._encode_container(x, kind, depth)
        if kind is tuple:
            return ["t", self._encode_items(x, depth)]
        if kind.__name__ in self.records and self.namespace.get(kind.__name__) is kind and kind.__dictoffset__:
            return self._known(x) or self._new(x, ["o", kind.__name__], is_sent=False)
        if kind is frozenset:
            return ["z", self._encode_items(list(x), depth)]
        if kind is bytes:
            return ["b", x.hex()]
        if kind is complex:
            return ["c", x.real, x.imag]
        if kind is range or kind is slice:
            return ["r" if kind is range else "S", *(self.encode(y, depth) for y in (x.start, x.stop, x.step))]
        if kind in _VIEWS:
            items = [part for pair in x for part in pair] if _VIEWS[kind] == "items" else list(x)
            return ["v", _VIEWS[kind], self._encode_items(items, depth)]
        if _is_array(x):
            form = [x.dtype.str, list(x.shape), _items_of_array(x)]
            return self._known(x) or self._new(x, ["n", *form])
        if _is_array_number(x):
            return ["N", x.dtype.str, _items_of_array(x)]
        name = (_PUBLIC.get(kind.__module__, kind.__module__), kind.__qualname__)
        if name in _ARGUMENTS and getattr(sys.modules.get(name[0]), name[1], None) is kind:
            return ["x", *name, self._encode_items(list(_ARGUMENTS[name](x)), depth)]
        return self.encode_other(x, depth)

    def encode_other(self, x: Any, depth: int) -> Any:
        """Return this side's form of a value that does not travel whole. Here there is none. Raises: ValueError."""
        raise ValueError(f"a {type(x).__name__}, which does not travel")

    def _encode_items(self, items: Any, depth: int) -> list[Any]:
        kinds = set(map(type, items))
        if kinds <= _DIRECT or (kinds == {int} and min(items) > -_PLAIN_INT and max(items) < _PLAIN_INT):
            return list(items)
        return [self.encode(x, depth + 1) for x in items]

    def _known(self, x: Any) -> list[Any] | None:
        """Return the form of an object that is shared already."""
        number = self.numbers.get(id(x))
        return None if number is None else ["=", number]

    def _new(self, x: Any, node: list[Any], is_sent: bool = True) -> list[Any]:
        self._register(x, is_sent)
        return node

    def _encode_container(self, x: Any, kind: type, depth: int) -> Any:
        if (known := self._known(x)) is not None:
            return known
        self._register(x)
        node = [_CONTAINERS[kind], self._encode_contents(x, depth)]
        if kind is collections.deque:
            node.append(x.maxlen)
        if kind is collections.defaultdict:
            node.append(self.encode(x.default_factory, depth + 1))
        return node

    def _encode_contents(self, x: Any, depth: int) -> Any:
        if type(x) is bytearray:
            return x.hex()
        if _is_array(x):
            return _items_of_array(x)
        return self._encode_items(_contents(x), depth)

    def _register(self, x: Any, is_sent: bool = True) -> None:
        self.numbers[id(x)] = len(self.shared)
        self.shared.append((x, _contents(x) if is_sent else None))

    def changes(self) -> list[Any]:
        """Return [number, contents, ...] of the shared objects that this side has changed, or that are new records."""
        changed: list[Any] = []
        number, num_before = 0, len(self.shared)
        while number < len(self.shared):  # contents may share more: of these, records alone are still to be sent
            x, seen = self.shared[number]
            if seen is None or number < num_before:
                now = _contents(x)
                if seen is None or len(now) != len(seen) or any(map(operator.is_not, now, seen)):
                    self.shared[number] = x, now
                    changed += [number, self._encode_contents(x, 0)]
            number += 1
        return changed

    # From JSON

    def decode(self, node: Any, depth: int = 0) -> Any:
        """Return the value. Raises: TypeError, ValueError, KeyError, IndexError or Forged on what nobody wrote."""
        if type(node) is not list:
            if type(node) is dict:
                raise Forged("an object in a frame")
            return node
        if depth > MAX_DEPTH + 2:
            raise Forged("a value that is nested too deep")
        tag = node[0]
        if tag in _TYPES:
            return self._decode_container(node, depth)
        if tag == "=":
            return self.shared[node[1]][0]
        if tag in ("o", "n"):
            made = object.__new__(self._record(node[1])) if tag == "o" else _array(*node[1:])
            self._register(made)
            return made
        if tag == "N":
            return _array(node[1], [], node[2])[()]
        if tag == "t":
            return tuple(self._decode_items(node[1], depth))
        if tag == "z":
            return frozenset(self._decode_items(node[1], depth))
        if tag == "i":
            return int(node[1], 16)
        if tag == "b":
            return bytes.fromhex(node[1])
        if tag == "c":
            return complex(node[1], node[2])
        if tag in ("r", "S"):
            return (range if tag == "r" else slice)(*(self.decode(x, depth) for x in node[1:4]))
        if tag == "v":
            return _view(node[1], self._decode_items(node[2], depth))
        if tag == "x":
            name = (node[1], node[2])
            _ = _ARGUMENTS[name]
            make = getattr(import_module(name[0]), _MAKERS.get(name) or node[2])
            return make(*self._decode_items(node[3], depth))
        if tag == "T":
            return self._named(node[1], node[2])
        return self.decode_other(node, depth)

    def decode_other(self, node: list[Any], depth: int) -> Any:
        """Return what `encode_other` of the other side has written. Here there is nothing. Raises: Forged."""
        raise Forged("a tag that is unknown")

    def _named(self, module: str, name: str) -> Any:
        if not self.is_trusted and module not in _SAFE_MODULES:
            raise Forged(f"the name {module}.{name}")
        part_of: Any = import_module(module)
        for part in name.split(".") if name else ():
            part_of = getattr(part_of, part)
        if not self.is_trusted and not isinstance(part_of, type):
            raise Forged(f"the name {module}.{name}")
        return part_of

    def _decode_items(self, nodes: Any, depth: int) -> list[Any]:
        if type(nodes) is not list:
            raise Forged("items that are no list")
        kinds = set(map(type, nodes))
        if list in kinds or dict in kinds:
            return [self.decode(x, depth + 1) for x in nodes]
        return nodes

    def _record(self, name: str) -> type:
        """Return this side's class of a record, or an empty one if this side has none with attributes."""
        if name not in self.records:
            raise Forged("a record of a class that is not known")
        kind = self.namespace.get(name)
        if not isinstance(kind, type) or not kind.__dictoffset__:
            kind = self.namespace[name] = type(name, (), {})
        return kind

    def _decode_container(self, node: list[Any], depth: int) -> Any:
        kind = _TYPES[node[0]]
        x: Any = collections.deque(maxlen=node[2]) if kind is collections.deque else kind()
        number = len(self.shared)
        self._register(x)
        self._fill(number, node[1], depth)
        if kind is collections.defaultdict:
            x.default_factory = self.decode(node[2], depth + 1)
        return x

    def _fill(self, number: int, body: Any, depth: int) -> None:
        filled: Any = self.shared[number][0]
        x = filled
        kind: Any = type(x)
        if kind is bytearray:
            x[:] = bytes.fromhex(body)
        elif _is_array(x):
            x[...] = _array(x.dtype.str, list(x.shape), body)
        else:
            items = self._decode_items(body, depth)
            if kind not in _CONTAINERS:
                names = items[: len(items) // 2]
                if not all(type(n) is str and (self.is_trusted or not callable(getattr(kind, n, 0))) for n in names):
                    raise Forged("an attribute that is none, or a method")
                x, kind = vars(x), dict
            x.clear()
            if kind in _DICTS:
                half = len(items) // 2
                fill: Any = kind.update if kind is collections.OrderedDict else dict.update
                fill(x, zip(items[:half], items[half:], strict=True))
            elif kind is set:
                x.update(items)
            else:
                x.extend(items)
        self.shared[number] = filled, _contents(filled)

    def apply(self, changed: list[Any]) -> None:
        """Change the shared objects as the other side has changed its own."""
        for number, body in zip(changed[::2], changed[1::2], strict=True):
            self._fill(number, body, 0)


def _is_array(x: Any) -> bool:
    """True for an array of numpy whose items are plain. Nothing here imports numpy for a program that has not."""
    numpy = sys.modules.get("numpy")
    return type(x) is getattr(numpy, "ndarray", None) and x.dtype.kind in _ARRAY_KINDS and x.dtype.itemsize > 0


def _is_array_number(x: Any) -> bool:
    """True for a number, a text or a date of numpy."""
    numpy = sys.modules.get("numpy")
    generic = getattr(numpy, "generic", None)
    return generic is not None and isinstance(x, generic) and x.dtype.kind in _ARRAY_KINDS and x.dtype.itemsize > 0


def _items_of_array(x: Any) -> str:
    """Return the items, row by row, in hexadecimal. Equal items are the same text object."""
    return sys.intern(x.tobytes().hex())


def _array(kind: str, shape: list[int], items: str) -> Any:
    """Return a new array. Raises: ValueError for a kind that is not plain, or items that do not fill the shape."""
    import numpy as np

    if not _ARRAY_ITEM.fullmatch(kind) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"no array: {kind!r:.20} {shape!r:.60}")
    return np.frombuffer(bytes.fromhex(items), np.dtype(kind)).reshape(shape).copy()


def _view(kind: str, items: list[Any]) -> Any:
    """Return a view of a dict with these keys, values or items."""
    if kind == "keys":
        return dict.fromkeys(items).keys()
    if kind == "values":
        return dict(enumerate(items)).values()
    return dict(zip(items[::2], items[1::2], strict=True)).items()


def name_of(x: Any, is_trusted: bool) -> list[str] | None:
    """Return module and name of a part of Python itself that the other side has too; None for anything else.

    `is_trusted`: True on the program's side, whose names of anything but plain types the tests' side refuses.
    """
    if isinstance(x, type):
        module, name = x.__module__, x.__qualname__
    else:
        module, name = getattr(x, "__module__", None) or "", getattr(x, "__qualname__", "")
        if type(x) is type(sys):
            module, name = x.__name__, ""
        elif type(x) in (type(str.upper), type(int.__add__)):
            module, name = "builtins", x.__qualname__
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        return None
    module = _PUBLIC.get(module, module)
    if is_trusted and (module not in _SAFE_MODULES or not isinstance(x, type)):
        return None
    if module.partition(".")[0] not in sys.stdlib_module_names or module.partition(".")[0] in ("builtins_", "__main__"):
        return None
    part_of: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in name.split(".") if name else ():
        part_of = getattr(part_of, part, None)
    return [module, name] if part_of is x else None
