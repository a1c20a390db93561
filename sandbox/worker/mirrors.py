"""Objects of the other process, as this one sees them: each is a proxy, whose class mirrors the real class.

A mirror has the name, the bases and the special methods of its class, so `isinstance`, `except`, `len` and `for`
mean what they mean there. Every act is asked of the other process, by `Asker`. A subclass of a number, a text or a
tuple holds its plain value too, and compares by it; an exception is a real one, which can be raised here.
"""

from __future__ import annotations

import builtins
import copy
import math
import operator
import sys
import types
from collections.abc import Callable
from typing import Any, Protocol

_MAX_NAME = 200
_BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and", "xor", "or",
    "matmul",
)  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_WORDS = {"and": "and_", "or": "or_"}


def _of_type(name: str) -> Callable[..., Any]:
    return lambda x, *rest: getattr(type(x), name)(x, *rest)


def _wait_for(x: Any) -> Any:
    """Return the result of an awaitable object, in a loop of its own."""
    import asyncio

    async def wait() -> Any:
        return await x

    return asyncio.run(wait())


ACTS: dict[str, Callable[..., Any]] = {
    **{f"__{n}__": getattr(operator, _WORDS.get(n, n), divmod) for n in (*_BINARY, *_COMPARISONS)},
    **{f"__i{n}__": getattr(operator, f"i{n}") for n in _BINARY if n != "divmod"},
    "__pow__": pow, "__neg__": operator.neg, "__pos__": operator.pos, "__invert__": operator.invert, "__abs__": abs,
    "__int__": int, "__float__": float, "__complex__": complex, "__index__": operator.index, "__round__": round,
    "__trunc__": math.trunc, "__floor__": math.floor, "__ceil__": math.ceil, "__len__": len, "__bool__": bool,
    "__iter__": iter, "__next__": next, "__reversed__": reversed, "__contains__": operator.contains,
    "__getitem__": operator.getitem, "__setitem__": operator.setitem, "__delitem__": operator.delitem, "__hash__": hash,
    "__str__": str, "__repr__": repr, "__bytes__": bytes, "__format__": format, "__fspath__": _of_type("__fspath__"),
    "__enter__": _of_type("__enter__"), "__exit__": _of_type("__exit__"), "__call__": lambda x, /, *a, **k: x(*a, **k),
    "__await__": _wait_for, "__aiter__": aiter, "__anext__": lambda x: _wait_for(anext(x)),
    "__aenter__": lambda x: _wait_for(type(x).__aenter__(x)),
    "__aexit__": lambda x, *exc: _wait_for(type(x).__aexit__(x, *exc)), "__copy__": copy.copy,
    "__deepcopy__": lambda x, *_: copy.deepcopy(x),
}  # fmt: skip
"""Special methods, and what the process of the object does for each."""
SWAPPED = {f"__r{n}__": f"__{n}__" for n in _BINARY}
SPECIAL_NAMES = frozenset(ACTS) | frozenset(SWAPPED)
_COMPARING = frozenset(f"__{n}__" for n in _COMPARISONS)
WITH_OPERAND = frozenset(SWAPPED) | frozenset(SWAPPED.values()) | {f"__i{n}__" for n in _BINARY} | _COMPARING
"""Special methods that get another operand."""
_ASYNC = ("__anext__", "__aenter__", "__aexit__")
_REAL_TYPES = {
    (t.__module__, t.__qualname__): t
    for t in [*vars(types).values(), map, zip, filter, enumerate, reversed, memoryview, property, type(iter([]))]
    if isinstance(t, type)
}
_NO_EXCEPTIONS_OF = ("unittest", "pytest", "_pytest", "worker")
"""Modules whose exceptions mean something to the tests' process: a program cannot raise them there."""


class Asker(Protocol):
    """The connection to the process in which the real objects are."""

    def act(self, name: str, ref: Ref, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return what the special method `name` of the real object returns."""

    def get(self, ref: Ref, x: Any, name: str) -> Any:
        """Return an attribute of the real object."""

    def set(self, x: Any, name: str, *value: Any) -> None:
        """Set an attribute of the real object; without a value, delete it."""

    def make(self, kind: MirrorType, args: Any, kwargs: Any) -> Any:
        """Return a new instance of the real class."""

    def refuse(self, why: str) -> BaseException:
        """Return the exception for what cannot be done from here."""

    def release(self, number: int, count: int) -> None:
        """Note that nothing here refers to the real object any more. May be called at any moment."""


class Ref:
    """A reference of a proxy: the number of its object in the other process, and how often that was received."""

    __slots__ = ("asker", "count", "is_made", "number")

    def __init__(self, asker: Asker, number: int) -> None:
        self.asker, self.number, self.count = asker, number, 0
        self.is_made = False
        """True if this side has made the object, by a call of its class."""

    def __del__(self) -> None:
        self.asker.release(self.number, self.count)


class Kind:
    """The facts of a class that its mirror needs."""

    __slots__ = ("asker", "base", "fields", "is_named", "is_of_python", "is_unhashable", "number", "specials")

    def __init__(self, asker: Asker, number: int, description: Any) -> None:
        _, _, specials, self.base, self.fields, self.is_unhashable = description
        self.asker, self.number, self.is_named, self.is_of_python = asker, number, False, False
        self.specials = frozenset(s for s in specials if s in SPECIAL_NAMES)


class MirrorType(type):
    """The type of mirrors."""

    def __new__(mcs, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> MirrorType:
        """Make a mirror. Raises: what the asker says, where code on this side derives a class from a mirror."""
        if "_verizero_kind" not in space:
            of = next(b for b in bases if isinstance(b, MirrorType))
            raise of._verizero_kind.asker.refuse(f"the test derives a class from {of.__name__}")
        return super().__new__(mcs, name, bases, space)

    _verizero_kind: Kind

    def __call__(cls, /, *args: Any, **kwargs: Any) -> Any:
        return cls._verizero_kind.asker.make(cls, args, kwargs)

    def __getattr__(cls, name: str) -> Any:
        if name == "_verizero_kind":
            raise AttributeError(name)
        return cls._verizero_kind.asker.get(_class_ref(cls), cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        if name == "__abstractmethods__":
            super().__setattr__(name, value)
        else:
            cls._verizero_kind.asker.set(cls, name, value)

    @property
    def __doc__(cls) -> Any:  # type: ignore[override]
        return cls._verizero_kind.asker.get(_class_ref(cls), cls, "__doc__")

    def __iter__(cls) -> Any:
        return cls._verizero_kind.asker.act("__iter__", _class_ref(cls), cls)

    def __len__(cls) -> Any:
        return cls._verizero_kind.asker.act("__len__", _class_ref(cls), cls)

    def __bool__(cls) -> bool:
        return True

    def __getitem__(cls, key: Any) -> Any:
        return cls._verizero_kind.asker.act("__getitem__", _class_ref(cls), cls, key)

    def __contains__(cls, item: Any) -> Any:
        return cls._verizero_kind.asker.act("__contains__", _class_ref(cls), cls, item)


class _ClassRef(Ref):
    __slots__ = ()

    def __del__(self) -> None:
        """Classes are never released: their mirrors live as long as the link."""


def _class_ref(mirror: MirrorType) -> Ref:
    ref = _ClassRef(mirror._verizero_kind.asker, mirror._verizero_kind.number)
    ref.is_made = True
    return ref


class Proxy:
    """The base of mirrors whose instances have no value here."""

    # No annotation: the class would have `__annotations__`, which hides those of the real object.
    __slots__ = ("__weakref__", "_verizero")

    def __getattr__(self, name: str) -> Any:
        ref = object.__getattribute__(self, "_verizero")
        return ref.asker.get(ref, self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._verizero.asker.set(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._verizero.asker.set(self, name)

    def __eq__(self, other: object) -> Any:
        return self._verizero.asker.act("__eq__", self._verizero, self, other)

    def __ne__(self, other: object) -> Any:
        return self._verizero.asker.act("__ne__", self._verizero, self, other)

    def __hash__(self) -> int:
        kind = type(self)._verizero_kind  # type: ignore[attr-defined]
        if kind.is_unhashable:
            raise TypeError(f"unhashable type: '{type(self).__name__}'")
        if "__hash__" in kind.specials:
            return int(self._verizero.asker.act("__hash__", self._verizero, self))
        return hash(self._verizero.number)

    def __repr__(self) -> str:
        return str(self._verizero.asker.act("__repr__", self._verizero, self))

    def __str__(self) -> str:
        return str(self._verizero.asker.act("__str__", self._verizero, self))

    def __format__(self, form: str) -> str:
        return str(self._verizero.asker.act("__format__", self._verizero, self, form))

    def __copy__(self) -> Any:
        return self._verizero.asker.act("__copy__", self._verizero, self)

    def __deepcopy__(self, memo: Any) -> Any:
        return self._verizero.asker.act("__deepcopy__", self._verizero, self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self._verizero.asker.refuse(f"the test pickles a {type(self).__name__} of the program")

    def __dir__(self) -> list[str]:
        return [*self._verizero.asker.get(self._verizero, self, "__dir__")()]


def ref_of(x: Any) -> Ref | None:
    """Return the reference of an object of the other side, None for any other."""
    kind = type(x)
    if isinstance(kind, MirrorType):
        return x._verizero  # type: ignore[no-any-return]
    return _class_ref(x) if kind is MirrorType else None


def _forward(name: str) -> Callable[..., Any]:
    if name == "__await__":

        def wait(self: Any) -> Any:
            yield from ()
            return self._verizero.asker.act(name, self._verizero, self)

        return wait
    if name in _ASYNC:

        async def wait_for(self: Any, *args: Any) -> Any:
            return self._verizero.asker.act(name, self._verizero, self, *args)

        return wait_for

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._verizero.asker.act(name, self._verizero, self, *args, **kwargs)

    return method


def _get_missing(self: Any, name: str) -> Any:
    if name == "_verizero" or name.startswith("__"):
        raise AttributeError(name)
    return self._verizero.asker.get(self._verizero, self, name)


def _text_of_exception(self: Any) -> str:
    return str(self.__dict__.get("_verizero_text", ""))


def mirror_of(asker: Asker, number: int, description: Any, bases: list[type]) -> type:
    """Return a new mirror of a class. `description`: module, name, special methods, base, fields, unhashable.

    `bases` are mirrors, or classes of this side: plain immutable types and exceptions.
    """
    module, name = str(description[0])[:_MAX_NAME], str(description[1])[:_MAX_NAME]
    kind = Kind(asker, number, description)
    space: dict[str, Any] = {"_verizero_kind": kind, "__module__": module, "__qualname__": name}
    if any(not issubclass(b, Proxy) for b in bases):
        # Instances have a value here, with which Python lets no proxy be mixed: what a mixin adds is asked for by name.
        bases = [b for b in bases if not issubclass(b, Proxy)]
    is_exception = any(issubclass(b, BaseException) for b in bases)
    if bases and not issubclass(bases[0], Proxy):
        space["__getattr__"] = _get_missing
        if is_exception:
            space["__str__"] = _text_of_exception
        else:
            space |= {s: _forward(s) for s in kind.specials & {"__str__", "__repr__", "__format__", "__call__"}}
        for index, field in enumerate(kind.fields or ()):
            if not str(field).startswith("_"):  # else an item could be a method that Python itself calls, as __eq__
                space[str(field)] = property(operator.itemgetter(index))
    else:
        space["__slots__"] = ()
        space["__doc__"] = property(lambda self: self._verizero.asker.get(self._verizero, self, "__doc__"))
        own = set(kind.specials) - set(vars(Proxy))
        space |= {s: _forward(s) for s in own}
        real = _REAL_TYPES.get((module, name))
        kind.is_of_python = module.partition(".")[0] in sys.stdlib_module_names and module != "__main__"
        if real is not None:
            space["__class__"] = property(lambda self: real)
    unmixed = [b for b in bases if not any(other is not b and issubclass(other, b) for other in bases)]
    return MirrorType(name.rpartition(".")[2], tuple(unmixed) or (Proxy,), space)


def python_exception(module: str, name: str) -> type | None:
    """Return the exception of Python itself with that name, if its module is loaded here and it may be raised."""
    top = module.partition(".")[0]
    if top not in sys.stdlib_module_names or top in _NO_EXCEPTIONS_OF or top == "__main__":
        return None
    named: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in name.split("."):
        named = getattr(named, part, None)
    if not isinstance(named, type) or not issubclass(named, BaseException):
        return None
    return None if named.__module__.partition(".")[0] in _NO_EXCEPTIONS_OF else named
