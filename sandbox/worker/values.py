"""Values on the link of a suite, by exact type, and the identity of what can change.

A value of a plain type travels whole: numbers, texts, bytes, tuples, lists, sets, dicts and their kin in `collections`,
dates, decimals, fractions, ranges, patterns and paths. What can change (lists, dicts, sets, bytearrays) has a number as
long as both processes hold it: so both have one object each, and `Values.changes` sends what one side has changed. All
else is a reference, which `Port` writes.

To decode runs nothing of the other side's: it makes values of known types only, with a bound of depth and of bytes.
"""

from __future__ import annotations

import builtins
import collections
import operator
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from . import arrays
from .link import Forged

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
_SAFE_MODULES = {"builtins", "collections", *(module for module, _ in _ARGUMENTS)}
"""Modules whose types the tests' side takes by name."""
IMMUTABLE = (int, float, complex, str, bytes, tuple, frozenset)


class Entry:
    """An object that can change and that both sides hold, with its items as they were sent or received last."""

    __slots__ = ("obj", "seen")

    def __init__(self, obj: Any, seen: list[Any] | None) -> None:
        self.obj, self.seen = obj, seen
        """`seen` is None for a record whose attributes have not been sent."""


def _references(entry: Entry) -> int:
    return sys.getrefcount(entry.obj)


_ALONE = _references(Entry([], []))
"""References to an object that only its entry holds, as `_references` counts."""


def _contents(obj: Any) -> list[Any]:
    if type(obj) not in _CONTAINERS:
        if arrays.is_array(obj):
            return [arrays.items_of(obj)]
        obj = vars(obj)  # a record
    return [*obj.keys(), *obj.values()] if type(obj) in _DICTS else list(obj)


class Values:
    """Values to JSON and back. Its numbers begin at `first` and go up by 2, so that those of both sides differ."""

    def __init__(self, first: int, is_trusted: bool) -> None:
        self.next_number, self.is_trusted = first, is_trusted
        """`is_trusted`: True where the other side is the one with the tests, which may name any part of Python."""
        self.shared: dict[int, Entry] = {}
        self.numbers: dict[int, int] = {}
        """id() of a shared object -> its number."""
        self.records: tuple[str, ...] = ()
        """Names of classes that both sides have. Their instances travel by their attributes, as dicts do."""
        self.new_records: list[int] = []
        self.namespace: dict[str, Any] = {}
        """The names of this side, in which those classes are."""

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
            number = self.numbers.get(id(x))
            return ["=", number] if number is not None else ["o", self._register(x, is_sent=False), kind.__name__]
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
        if arrays.is_array(x):
            number = self.numbers.get(id(x))
            form = [x.dtype.str, list(x.shape), arrays.items_of(x)]
            return ["=", number] if number is not None else ["n", self._register(x), *form]
        if arrays.is_number(x):
            return ["N", x.dtype.str, arrays.items_of(x)]
        name = (kind.__module__, kind.__qualname__)
        if name in _ARGUMENTS and getattr(sys.modules.get(name[0]), name[1], None) is kind:
            return ["x", *name, self._encode_items(list(_ARGUMENTS[name](x)), depth)]
        return self.encode_reference(x, depth)

    def encode_reference(self, x: Any, depth: int) -> Any:
        """Return the form of an object that does not travel whole. Here there is none. Raises: ValueError."""
        raise ValueError(f"a {type(x).__name__}, which does not travel")

    def _encode_items(self, items: Any, depth: int) -> list[Any]:
        kinds = set(map(type, items))
        if kinds <= _DIRECT or (kinds == {int} and min(items) > -_PLAIN_INT and max(items) < _PLAIN_INT):
            return list(items)
        return [self.encode(x, depth + 1) for x in items]

    def _encode_container(self, x: Any, kind: type, depth: int) -> Any:
        number = self.numbers.get(id(x))
        if number is not None:
            return ["=", number]
        number = self._register(x)
        node = [_CONTAINERS[kind], number, self._encode_contents(x, depth)]
        if kind is collections.deque:
            node.append(x.maxlen)
        if kind is collections.defaultdict:
            node.append(self.encode(x.default_factory, depth + 1))
        return node

    def _encode_contents(self, x: Any, depth: int) -> Any:
        if type(x) is bytearray:
            return x.hex()
        if arrays.is_array(x):
            return arrays.items_of(x)
        return self._encode_items(_contents(x), depth)

    def _register(self, x: Any, number: int | None = None, is_sent: bool = True) -> int:
        if number is None:
            number, self.next_number = self.next_number, self.next_number + 2
        self.shared[number] = Entry(x, _contents(x) if is_sent else None)
        if not is_sent:
            self.new_records.append(number)
        self.numbers[id(x)] = number
        return number

    def changes(self) -> list[Any]:
        """Return [number, contents, ...] of the shared objects that this side has changed, or that are new records."""
        changed: list[Any] = []
        to_check = list(self.shared.items())
        self.new_records.clear()
        while to_check:
            for number, entry in to_check:
                now = _contents(entry.obj)
                if entry.seen is None or len(now) != len(entry.seen) or any(map(operator.is_not, now, entry.seen)):
                    entry.seen = now
                    changed += [number, self._encode_contents(entry.obj, 0)]
            # Contents may hold new records. They come next, so that a long list of nodes is no deep value.
            to_check = [(number, self.shared[number]) for number in self.new_records]
            self.new_records.clear()
        return changed

    # Which objects are shared

    def drop_own(self) -> list[int]:
        """Forget the shared objects that nothing on this side holds any more. Return the numbers of the others."""
        to_check = list(self.shared)
        while to_check:
            number = to_check.pop()
            entry = self.shared.get(number)
            if entry is not None and _references(entry) <= _ALONE:
                # What only this object held is free once it is gone.
                to_check += self._numbers_in(_contents(entry.obj))
                self._forget(number)
            del entry
        return list(self.shared)

    def _numbers_in(self, items: Iterable[Any]) -> list[int]:
        numbers: list[int] = []
        for item in items:
            if type(item) is tuple or type(item) is frozenset:
                numbers += self._numbers_in(item)
            elif (number := self.numbers.get(id(item))) is not None:
                numbers.append(number)
        return numbers

    def keep(self, numbers: Any) -> None:
        """Forget all shared objects but those that the other side still holds."""
        kept = set(numbers)
        for number in [n for n in self.shared if n not in kept]:
            self._forget(number)

    def _forget(self, number: int) -> None:
        del self.numbers[id(self.shared[number].obj)]
        del self.shared[number]

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
            return self.shared[node[1]].obj
        if tag == "o":
            self._check_number(node[1])
            record: Any = object.__new__(self._record(node[2]))
            self._register(record, node[1])
            return record
        if tag == "n":
            self._check_number(node[1])
            array = arrays.filled(*node[2:])
            self._register(array, node[1])
            return array
        if tag == "N":
            return arrays.filled(node[1], [], node[2])[()]
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
        return self.decode_reference(node, depth)

    def decode_reference(self, node: list[Any], depth: int) -> Any:
        """Return what `encode_reference` of the other side has written. Here there is nothing. Raises: Forged."""
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

    def _check_number(self, number: Any) -> None:
        if type(number) is not int or number in self.shared or (number - self.next_number) % 2 == 0:
            raise Forged("a number that is not free")

    def _record(self, name: str) -> type:
        """Return this side's class of a record, or an empty one if this side has none with attributes."""
        if name not in self.records:
            raise Forged("a record of a class that is not known")
        kind = self.namespace.get(name)
        if not isinstance(kind, type) or not kind.__dictoffset__:
            kind = self.namespace[name] = type(name, (), {})
        return kind

    def _decode_container(self, node: list[Any], depth: int) -> Any:
        kind, number = _TYPES[node[0]], node[1]
        self._check_number(number)
        x: Any = collections.deque(maxlen=node[3]) if kind is collections.deque else kind()
        self._register(x, number)
        self._fill(self.shared[number], node[2], depth)
        if kind is collections.defaultdict:
            x.default_factory = self.decode(node[3], depth + 1)
        return x

    def _fill(self, entry: Entry, body: Any, depth: int) -> None:
        x: Any = entry.obj
        kind: Any = type(x)
        if kind is bytearray:
            x[:] = bytes.fromhex(body)
        elif arrays.is_array(x):
            arrays.fill(x, body)
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
        entry.seen = _contents(entry.obj)

    def apply(self, changed: list[Any]) -> None:
        """Change the shared objects as the other side has changed its own."""
        for number, body in zip(changed[::2], changed[1::2], strict=True):
            self._fill(self.shared[number], body, 0)


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
    if is_trusted and (module not in _SAFE_MODULES or not isinstance(x, type)):
        return None
    if module.partition(".")[0] not in sys.stdlib_module_names or module.partition(".")[0] in ("builtins_", "__main__"):
        return None
    part_of: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in name.split(".") if name else ():
        part_of = getattr(part_of, part, None)
    return [module, name] if part_of is x else None
