"""The process of a suite that has the program: it does what the tests ask, and nothing here is trusted."""

from __future__ import annotations

import builtins
import collections
import contextlib
import gc
import linecache
import os
import resource
import sys
from collections.abc import Callable
from itertools import count
from posix import _exit
from time import process_time
from typing import Any

from . import frames, harness, streams
from .frames import Forged, Gone, Link
from .suite_values import Values, name_of

MAX_FRAME_MIB = 8
"""MiB of a value that travels between the processes of a suite."""
OBJECT, EMPTY, CALLABLE, ITERATOR = range(4)
"""Kinds of objects that stay in the program's process; EMPTY: one that is false."""
_PLAIN_OF: dict[type, Callable[[Any], Any]] = {
    int: int.__int__, float: float.__float__, str: str.__str__, complex: lambda x: complex.__add__(x, 0j),
    bytes: lambda x: b"".join((x, b"")), tuple: lambda x: tuple(tuple.__iter__(x)),
    list: lambda x: list(list.__iter__(x)), dict: lambda x: dict(dict.items(x)),
    frozenset: lambda x: frozenset(frozenset.__iter__(x)), set: lambda x: set(set.__iter__(x)),
    bytearray: lambda x: bytearray(bytearray.__iter__(x)),
    collections.deque: lambda x: collections.deque(collections.deque.__iter__(x)),
}  # fmt: skip
"""Plain types, and how the plain value of an instance of a class derived from one is read."""
_SLOTS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (OSError, ("filename", "filename2")), (ImportError, ("name", "path")), (AttributeError, ("name",)),
    (NameError, ("name",)),
)  # fmt: skip
_MAX_CAUSES = 4
_MAX_TEXT = 100_000
_MAX_NAME = 200


def run(order: tuple[Any, ...], program: bytes) -> None:
    """Load the program, and do what the tests ask until they end. Never returns."""
    gc.enable()
    source = program.decode("utf-8", "surrogatepass").removeprefix("\ufeff")
    loaded = _Program(Link(*frames.LINK, MAX_FRAME_MIB << 20), source)
    try:
        loaded.link.send(["hello", *loaded.load()])
        while True:
            loaded.answer(loaded.link.receive())
    except (Gone, Forged):
        _exit(0)


class _ProgramValues(Values):
    """The values of the program's side. What does not travel whole stays here, and the tests get its number."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        super().__init__(True)
        self.namespace = namespace
        self.numbers_of_objects = count()
        self.objects: dict[int, Any] = {}
        self.known: dict[int, int] = {}
        """id() of an object -> its number."""

    def forget_objects(self) -> None:
        """Forget all objects that tests have, but for classes."""
        self.objects = {n: x for n, x in self.objects.items() if isinstance(x, type)}
        self.known = {id(x): n for n, x in self.objects.items()}

    def number_of(self, x: Any) -> int:
        """Return the number of an object that stays here."""
        if id(x) not in self.known:
            self.known[id(x)] = next(self.numbers_of_objects)
            self.objects[self.known[id(x)]] = x
        return self.known[id(x)]

    def encode_other(self, x: Any, depth: int) -> Any:
        """Return a name of Python's, a class of exceptions, a derived class's plain value, or an object's number."""
        if (name := name_of(x, True)) is not None:
            return ["T", *name]
        kind = type(x)
        if issubclass(kind, type) and issubclass(x, BaseException):
            return self._encode_class(x)
        for base, plain in _PLAIN_OF.items():
            if issubclass(kind, base):
                return self.encode(plain(x), depth + 1)
        what = ITERATOR if hasattr(kind, "__next__") else CALLABLE if callable(x) else OBJECT if _truth(x) else EMPTY
        return ["h", self.number_of(x), f"{kind.__module__}.{kind.__qualname__}"[:_MAX_NAME], what]

    def decode_other(self, node: list[Any], depth: int) -> Any:
        """Return the object with the number in a node."""
        return self.objects[node[1]]

    def encode_exception(self, exc: BaseException, causes: int = 0) -> Any:
        """Return the form of an exception: class, arguments, attributes, text and cause."""
        try:
            text = str(exc)[:_MAX_TEXT]
        except BaseException:
            text = ""
        attributes: list[Any] = []
        for name, value in list(vars(exc).items()):
            if isinstance(name, str) and (not name.startswith("_") or name == "__notes__"):
                attributes += [name, self._encode_or_none(value)]
        own = [k for k in type(exc).__mro__ if str(k.__module__).partition(".")[0] not in sys.stdlib_module_names]
        for name in dict.fromkeys(n for k in own for n, x in vars(k).items() if isinstance(x, property)):
            with contextlib.suppress(Exception):
                attributes += [name, self._encode_or_none(getattr(exc, name))] if name[:1] != "_" else []
        for name in next((names for kind, names in _SLOTS if isinstance(exc, kind)), ()):
            attributes += [name, self._encode_or_none(getattr(exc, name, None))]
        args, cause = [self._encode_or_none(a) for a in exc.args], exc.__cause__
        encoded = self.encode_exception(cause, causes + 1) if cause is not None and causes < _MAX_CAUSES else None
        return ["e", self._encode_class(type(exc)), args, attributes, text, encoded]

    def _encode_class(self, kind: type) -> Any:
        """Return the form of a class of exceptions: a builtin's name, or number, names, bases and plain attributes."""
        if kind.__module__ == "builtins" and getattr(builtins, kind.__qualname__, None) is kind:
            return ["T", kind.__qualname__]
        bases = [self._encode_class(b) for b in kind.__bases__ if issubclass(b, BaseException)]
        plain = {n: x for n, x in vars(kind).items() if type(x) in (int, str, float) and not n.startswith("_")}
        names = [str(kind.__module__)[:_MAX_NAME], str(kind.__qualname__)[:_MAX_NAME]]
        return ["k", self.number_of(kind), *names, bases, list(plain), list(plain.values())]

    def _encode_or_none(self, x: Any) -> Any:
        num_shared = len(self.shared)
        try:
            return self.encode(x, 1)
        except ValueError:
            for dropped, _ in self.shared[num_shared:]:
                del self.numbers[id(dropped)]
            del self.shared[num_shared:]
            return None


def _truth(x: Any) -> bool:
    try:
        return bool(x)
    except BaseException:
        return True


class _Program:
    """The program, and the questions that the tests ask of it."""

    def __init__(self, link: Link, source: str) -> None:
        self.link, self.source = link, source
        module, self.namespace = harness._fresh_main("solution")
        sys.modules["solution"] = module
        self.values = _ProgramValues(self.namespace)
        self.stdout: Any = streams.fill_input(b"", False)
        self.sent = [0, 0]
        """Bytes of output and of errors that the tests have."""
        self.questions: dict[str, Callable[..., Any]] = {
            "name": self._named, "records": self._share, "reset": self._reset, "call": _call, "next": _next,
            "attribute": getattr,
        }  # fmt: skip
        linecache.cache[harness.NAME] = (lambda: source,)

    def load(self) -> list[Any]:
        """Run the program. Return the state, the reason if it failed, its names and its output."""
        try:
            code = compile(self.source, harness.NAME, "exec", dont_inherit=True)
        except BaseException as exc:
            return [frames.RAISED, f"does not compile: {_said(exc)}", [], self._output()]
        try:
            exec(code, self.namespace)
        except SystemExit as exc:
            return [frames.RAISED, f"left by sys.exit({exc.code!r}) while it was loaded"[:300], [], self._output()]
        except ModuleNotFoundError as exc:
            why = f"needs the package {exc.name!r}, which the sandbox does not have"
            return [frames.RAISED, why, [], self._output()]
        except MemoryError as exc:
            return [frames.NO_MEMORY, f"raised {_said(exc)} while it was loaded", [], self._output()]
        except BaseException as exc:
            return [frames.RAISED, f"raised {_said(exc)} while it was loaded", [], self._output()]
        names = {str(name) for name in self.namespace}
        solution = self.namespace.get("Solution")
        if isinstance(solution, type):
            names |= {name for name in dir(solution) if not name.startswith("__")}
        return [frames.FINISHED, "", sorted(names), self._output()]

    def answer(self, frame: list[Any]) -> None:
        """Do what a frame asks, and send the result. Raises: Gone."""
        reply = self._reply(frame)
        try:
            self.link.send([*reply, self._output()])
        except ValueError as exc:
            self.link.send(["#", str(exc), [], self._output()])

    def _reply(self, frame: list[Any]) -> list[Any]:
        """Return sign, result and changes."""
        _, question, nodes, names, changed = frame
        self.values.begin_call()
        values = [self.values.decode(node) for node in nodes]
        self.values.apply(changed)
        split = len(values) - len(names)
        try:
            result = self.questions[question](*values[:split], **dict(zip(names, values[split:], strict=True)))
        except BaseException as exc:
            return ["^", self.values.encode_exception(exc), self.values.changes()]
        try:
            return ["!", self.values.encode(result), self.values.changes()]
        except ValueError as exc:
            return ["#", str(exc), []]

    def _named(self, name: str) -> Any:
        """Return a global of the program, or a method of a new Solution."""
        if name in self.namespace:
            return self.namespace[name]
        if "Solution" not in self.namespace:
            raise AttributeError(f"the program defines no {name!r}")
        return getattr(self.namespace["Solution"](), name)

    def _share(self, *names: str) -> None:
        """Have instances of these classes travel by their attributes."""
        self.values.records = names

    def _reset(self) -> list[float]:
        """Forget all objects of the last test. Return the CPU seconds and the peak memory of this process."""
        self.values.forget_objects()
        return [process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]

    def _output(self) -> list[str]:
        """Return what the program has written since the last frame: output and errors."""
        try:
            streams.flush(self.stdout)
            ends = streams.output_sizes()
        except BaseException:
            return ["", ""]
        texts = []
        for index, (fd, end) in enumerate(zip((streams.OUT, streams.ERR), ends, strict=True)):
            data = os.pread(fd, max(0, end - self.sent[index]), self.sent[index]) if end > self.sent[index] else b""
            self.sent[index] = end
            texts.append(data.decode("utf-8", "replace"))
        return texts


def _call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _next(iterator: Any) -> list[Any]:
    """Return the next item, in a list; an empty list at the end."""
    end: Any = object()
    item = next(iterator, end)
    return [] if item is end else [item]


def _said(exc: BaseException) -> str:
    try:
        line = f", line {exc.lineno}" if isinstance(exc, SyntaxError) else ""
        return f"{type(exc).__name__}: {exc}{line}"[:300]
    except BaseException:
        return type(exc).__name__
