"""References on the link of a suite: objects that stay where they are, and the mirrors of those of the other side."""

from __future__ import annotations

import collections
import weakref
from typing import Any

from .link import Forged
from .mirrors import SPECIAL_NAMES, Asker, MirrorType, Ref, mirror_of, python_exception, ref_of
from .values import IMMUTABLE, Values, name_of

_MUTABLE = (list, dict, set, bytearray, collections.deque)
_PLAIN_OF: dict[type, Any] = {
    int: int.__int__, float: float.__float__, str: str.__str__, tuple: lambda x: tuple(tuple.__iter__(x)),
    bytes: lambda x: b"".join((x, b"")), frozenset: lambda x: frozenset(frozenset.__iter__(x)),
    complex: lambda x: complex.__add__(x, 0j),
}  # fmt: skip
_SLOTS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (OSError, ("filename", "filename2")), (ImportError, ("name", "path")), (AttributeError, ("name",)),
    (NameError, ("name",)),
)  # fmt: skip
_MAX_CAUSES = 4
_MAX_TEXT = 100_000


class References(Values):
    """Values with references. Objects of this side have numbers, and the other side counts what it has received."""

    def __init__(self, first: int, is_trusted: bool, asker: Asker) -> None:
        super().__init__(first, is_trusted)
        self.asker = asker
        self.mine: dict[int, list[Any]] = {}
        """Number -> an object that the other side refers to, and how often it was sent."""
        self.my_numbers: dict[int, int] = {}
        self.described: set[int] = set()
        self.theirs: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.numbers_of_theirs: dict[int, int] = {}
        """Number -> an object of a subclass of int."""
        self.mirrors: dict[int, type] = {}

    def forget_objects(self) -> None:
        """Forget all objects of both sides; classes stay known."""
        self.shared.clear()
        self.numbers.clear()
        for number in [n for n in self.mine if n not in self.described]:
            del self.my_numbers[id(self.mine[number][0])]
            del self.mine[number]
        self.theirs.clear()
        self.numbers_of_theirs.clear()

    def free(self, released: list[int]) -> None:
        """Forget objects of this side that the other side refers to no longer: [number, times, ...]."""
        for number, times in zip(released[::2], released[1::2], strict=True):
            held = self.mine.get(number)
            if held is not None and number not in self.described:
                held[1] -= times
                if held[1] <= 0:
                    del self.my_numbers[id(held[0])]
                    del self.mine[number]

    def _export(self, x: Any) -> int:
        number = self.my_numbers.get(id(x))
        if number is None:
            number, self.next_number = self.next_number, self.next_number + 2
            self.mine[number] = [x, 0]
            self.my_numbers[id(x)] = number
        self.mine[number][1] += 1
        return number

    # To JSON

    def encode_reference(self, x: Any, depth: int) -> Any:
        """Return the form of an object that does not travel whole."""
        ref = ref_of(x)
        if ref is not None and ref.asker is self.asker:
            return ["m", ref.number]
        if (name := name_of(x, self.is_trusted)) is not None:
            return ["T", *name]
        if isinstance(x, type):
            return self._encode_class(x)
        if isinstance(x, BaseException):
            return self.encode_exception(x)
        self.check_export(x)
        kind = type(x)
        for base in IMMUTABLE:
            if issubclass(kind, base):
                return ["u", self._export(x), self._encode_class(kind), self.encode(_PLAIN_OF[base](x), depth + 1)]
        return ["h", self._export(x), self._encode_class(kind)]

    def check_export(self, x: Any) -> None:
        """Raise what the side has to say if this object may not be shown to the other side."""

    def _encode_class(self, kind: type) -> Any:
        if isinstance(kind, MirrorType):
            return ["m", kind._verizero_kind.number]
        if (name := name_of(kind, self.is_trusted)) is not None and issubclass(kind, BaseException):
            return ["T", *name]
        number = self._export(kind)
        if number in self.described:
            return ["k", number]
        self.described.add(number)
        is_unhashable = getattr(kind, "__hash__", None) is None
        own = [k for k in kind.__mro__ if k is not object]
        is_value = issubclass(kind, (*IMMUTABLE, BaseException))
        if is_value:
            own = [k for k in own if k not in IMMUTABLE and not _is_python_exception(k)]
        specials = sorted(
            {name for k in own for name, value in vars(k).items() if name in SPECIAL_NAMES and value is not None}
        )
        if is_unhashable:
            specials = [name for name in specials if name != "__hash__"]
        base = next((b.__name__ for b in _MUTABLE if issubclass(kind, b)), None)
        fields = list(getattr(kind, "_fields", ())) if issubclass(kind, tuple) else None
        description = [str(kind.__module__), str(kind.__qualname__), specials, base, fields, is_unhashable]
        return ["k", number, description, [self._encode_class_or_name(b) for b in kind.__bases__ if _is_shown(b)]]

    def _encode_class_or_name(self, kind: type) -> Any:
        name = name_of(kind, self.is_trusted)
        return ["T", *name] if name is not None else self._encode_class(kind)

    def encode_exception(self, exc: BaseException, causes: int = 0) -> Any:
        """Return the form of an exception: number (0 if its class is Python's), class, arguments, attributes, text."""
        ref = ref_of(exc)
        if ref is not None and ref.asker is self.asker:
            return ["m", ref.number]
        kind = type(exc)
        named = self._encode_class(kind)
        number = self._export(exc) if named[0] != "T" else 0
        try:
            text = str(self.text_of(exc))[:_MAX_TEXT]
        except BaseException:
            text = ""
        args = [self._encode_or_none(a) for a in self.args_of(exc)]
        attributes: list[Any] = []
        for name, value in list(vars(exc).items()):
            if (isinstance(name, str) and not name.startswith("_")) or name == "__notes__":
                attributes += [name, self._encode_or_none(value)]
        for name in _slots_of(exc):
            attributes += [name, self._encode_or_none(getattr(exc, name, None))]
        cause = exc.__cause__
        encoded = self.encode_exception(cause, causes + 1) if cause is not None and causes < _MAX_CAUSES else None
        return ["e", number, named, args, attributes, text, encoded]

    def text_of(self, exc: BaseException) -> str:
        """Return the text of an exception."""
        return str(exc)

    def args_of(self, exc: BaseException) -> tuple[Any, ...]:
        """Return the arguments of an exception that may travel."""
        return exc.args

    def _encode_or_none(self, x: Any) -> Any:
        try:
            return self.encode(x, 1)
        except ValueError:
            return None

    # From JSON

    def decode_reference(self, node: list[Any], depth: int) -> Any:
        """Return what `encode_reference` of the other side has written."""
        tag = node[0]
        if tag == "m":
            return self.mine[node[1]][0]
        if tag == "k":
            return self._decode_class(node)
        if tag == "e":
            return self._decode_exception(node, depth)
        if tag not in ("h", "u"):
            return super().decode_reference(node, depth)
        obj: Any = self.theirs.get(node[1])
        if obj is None:
            obj = self.numbers_of_theirs.get(node[1])
        if obj is None:
            kind = self._decode_class(node[2])
            obj = self._decode_subvalue(kind, node, depth) if tag == "u" else object.__new__(kind)
            self._attach(obj, node[1])
        obj._verizero.count += 1
        return obj

    def _attach(self, x: Any, number: int) -> None:
        ref = Ref(self.asker, number)
        if isinstance(x, (*IMMUTABLE, BaseException)):
            x.__dict__["_verizero"] = ref
        else:
            object.__setattr__(x, "_verizero", ref)
        if isinstance(x, int):  # it cannot be referred to weakly, and the members of an Enum must stay the same objects
            self.numbers_of_theirs[number] = x
        elif not isinstance(x, (tuple, bytes)):
            self.theirs[number] = x

    def _decode_subvalue(self, kind: type, node: list[Any], depth: int) -> Any:
        plain = self.decode(node[3], depth + 1)
        base = type(plain)
        if base not in IMMUTABLE or not issubclass(kind, base):
            raise Forged("a value of another type than its class")
        return base.__new__(kind, plain)

    def _decode_class(self, node: list[Any]) -> type:
        if node[0] in ("m", "T"):
            obj = self.decode(node)
            if not isinstance(obj, type):
                raise Forged("a class that is none")
            return obj
        number = node[1]
        if len(node) == 2:
            return self.mirrors[number]
        _, _, description, nodes = node
        real = python_exception(description[0], description[1])
        bases = [self._decode_class(n) for n in nodes]
        if not all(issubclass(b, (*IMMUTABLE, BaseException)) or isinstance(b, MirrorType) for b in bases):
            raise Forged("a class with a base that has no mirror")
        self.mirrors[number] = real or mirror_of(self.asker, number, description, bases)
        return self.mirrors[number]

    def _decode_exception(self, node: list[Any], depth: int) -> BaseException:
        _, number, named, arg_nodes, attribute_nodes, text, cause = node
        kind = self._decode_class(named)
        if not issubclass(kind, BaseException):
            raise Forged("an exception that is none")
        obj = self.theirs.get(number) if number else None
        if obj is None:
            args = [self.decode(n, depth + 1) for n in arg_nodes]
            obj = _exception(kind, args)
            if isinstance(kind, MirrorType):
                self._attach(obj, number)
                obj.__dict__["_verizero_text"] = text
            names, values = attribute_nodes[::2], attribute_nodes[1::2]
            slots = _slots_of(obj)
            for name, value_node in zip(names, values, strict=True):
                value = self.decode(value_node, depth + 1)
                if name not in slots:
                    obj.__dict__[str(name)] = value
                elif value is not getattr(obj, name, None):  # an OSError whose `filename` was set to None would show it
                    setattr(obj, name, value)
            if cause is not None:
                obj.__cause__ = self.decode(cause, depth + 1)
        if (ref := ref_of(obj)) is not None:
            ref.count += 1
        return obj


def _slots_of(exc: BaseException) -> tuple[str, ...]:
    """Return what an exception of Python knows besides its arguments and its own attributes."""
    return next((names for kind, names in _SLOTS if isinstance(exc, kind)), ())


def _is_shown(base: type) -> bool:
    """True if a mirror needs this base: it is no class of Python's own, or an immutable type or an exception."""
    if base is object or base in _MUTABLE:
        return False
    return issubclass(base, (*IMMUTABLE, BaseException)) or name_of(base, False) is None


def _is_python_exception(kind: type) -> bool:
    return issubclass(kind, BaseException) and name_of(kind, False) is not None


def _exception(kind: type[BaseException], args: list[Any]) -> BaseException:
    """Return an exception without running an initialiser that was written in Python."""
    try:
        made = kind.__new__(kind, *args)
    except TypeError:
        made = BaseException.__new__(kind)
    first: Any = next(k for k in kind.__mro__ if k.__module__ == "builtins")
    try:
        first.__init__(made, *args)
    except (TypeError, ValueError):
        made.args = tuple(args)
    if type(made) is not kind and not issubclass(type(made), kind):
        raise Forged("an exception of another class")
    return made
