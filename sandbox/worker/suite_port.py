"""The tests' end of the link: what it lets the program decide, and what it lets the program see.

No comparison with a value of the test is ever asked of the program, or it could answer what the test wants to hear. A
program can ask for what an object of the test does, by its public names; it never sees a frame, a module or a global.
"""

from __future__ import annotations

import builtins
import collections
import functools
import os
import sys
import types
from collections.abc import Sequence
from posix import ftruncate, lseek, write
from typing import Any

from . import streams
from .link import Forged, Gone, Link
from .mirrors import ACTS, WITH_OPERAND, Kind, MirrorType, Proxy, Ref, ref_of
from .patches import SEEN, place_of, problem_of
from .port import Port
from .references import References

_PLAIN = (int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset, type(None))
_TELLING = frozenset(
    [
        "startswith",
        "endswith",
        "issubset",
        "issuperset",
        "isdisjoint",
        "intersection",
        "difference",
        "symmetric_difference",
        "removeprefix",
        "removesuffix",
        "replace",
        "strip",
        "lstrip",
        "rstrip",
        "partition",
        "rpartition",
        "translate",
        "casefold",
        "is_integer",
    ]
)
"""Methods of plain values that get what the test expects, so no other object may answer for one."""
_OF_PLAIN = frozenset([*(n for n in dir(str) if n.startswith("is")), "count", "index", "find", "rfind", "rindex"])
"""More of them, whose answers are easy to guess. An object of the program may have data of these names."""
_OF_MOCKS = ("configure_mock", "reset_mock", "attach_mock", "mock_add_spec")
"""Methods by which a program could change what a mock of the test has recorded."""
_OF_MOCKS_ALONE = ("__", "_mock", "_spec")
"""Beginnings of names of what a mock keeps for itself. Others with an underscore are attributes that it plays."""
_PREPARING = ("name", "records", "patch", "seed")
"""Questions that are no calls of the program."""
_OF_FUNCTIONS = ("__name__", "__doc__", "__qualname__", "__annotations__")
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_HIDDEN = (types.FrameType, types.CodeType, types.TracebackType, types.ModuleType)
_BARE = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


class Unplayable(BaseException):
    """The test does what cannot be done across two processes."""


class _Values(References):
    """The values of the tests' end. A failed assertion shows the program nothing of what it compared."""

    port: TestsPort

    def text_of(self, exc: BaseException) -> str:
        """Return the text of an exception."""
        return "" if isinstance(exc, AssertionError) else str(exc)

    def args_of(self, exc: BaseException) -> tuple[Any, ...]:
        """Return the arguments of an exception that may travel."""
        return () if isinstance(exc, AssertionError) else exc.args

    def check_export(self, x: Any) -> None:
        """Raise Unplayable if the program may not see this object."""
        if isinstance(x, _HIDDEN):
            raise self.port.refuse(f"the test gives the program a {type(x).__name__}")

    def decode_reference(self, node: list[Any], depth: int) -> Any:
        """Return the object; one that the program gives back is no longer taken for one that the test has made."""
        obj = super().decode_reference(node, depth)
        if self.port.is_given_back and node[0] == "h":
            obj._verizero.is_made = False
        return obj


class TestsPort(Port):
    """The tests' end of the link."""

    __test__ = False

    def __init__(self, link: Link, max_output: int) -> None:
        self.is_given_back = True
        super().__init__(link, is_tests=True)
        self.max_output, self.num_output = max_output, 0
        self.stdin, self.input, self.argv = sys.stdin, builtins.input, list(sys.argv)
        self.environment = dict(os.environ)
        self.is_environment_sent = False
        self.questions |= {
            "act": self._guarded_act, "get": self._guarded_get, "set": self._guarded_set, "delete": self._guarded_set,
            "input": lambda prompt: builtins.input(prompt), "stdin": lambda: sys.stdin,
        }  # fmt: skip
        self.fault = ""
        """The act of the program that ends its run; empty if there is none."""
        self.begin("", ())

    def make_values(self, first: int, is_trusted: bool) -> References:
        """Return the values of this end."""
        values = _Values(first, is_trusted, self)
        values.port = self
        return values

    def begin(self, source: str, classes: Sequence[str]) -> None:
        """Prepare for the next test. `classes`: names of the program that it uses as classes."""
        self.classes = classes
        self.num_calls, self.unplayable, self.failed_inside, self.is_gone = 0, "", "", False
        self.from_program: list[BaseException] = []
        self.names_stop = "StopIteration" in source

    # Frames

    def failed(self, why: str) -> BaseException:
        """Return the exception for a frame that cannot be read."""
        self.fault = self.fault or f"sent {why}"
        return Forged(why)

    def extra(self) -> list[Any]:
        """Return input, arguments and environment that the test has put in place."""
        environment = None
        if (now := dict(os.environ)) != self.environment:
            environment, self.environment = [part for pair in now.items() for part in pair], now
        argv = [str(a) for a in sys.argv] if sys.argv != self.argv else None
        return [builtins.input is not self.input, sys.stdin is not self.stdin, argv, environment]

    def take_extra(self, extra: list[Any]) -> None:
        """Print what the program has printed."""
        released, *texts = extra
        self.values.free(released)
        for text, stream in zip(texts, (sys.stdout, sys.stderr), strict=True):
            if text:
                self.num_output += len(text)
                if self.num_output > self.max_output:
                    raise self.failed(f"more than {self.max_output >> 10} KiB of output")
                stream.write(text)

    def ask(self, question: str, /, *values: Any, **named: Any) -> Any:
        """Ask the program. Raises: what it raises; Unplayable; Gone; Forged."""
        begin = None if self.num_calls else lseek(streams.OUT, 0, 2)
        if begin is not None:
            write(streams.OUT, b".")  # if this process is killed, it shows that the test has called the program
        self.num_calls += question not in _PREPARING
        if self.fault or self.is_gone:
            raise Gone("the program ended before")
        try:
            answer = super().ask(question, *values, **named)
            if begin is not None and not self.num_calls:
                ftruncate(streams.OUT, begin)  # a question that only prepares is no call
                lseek(streams.OUT, begin, 0)
            return answer
        except Gone:
            self.is_gone = True
            raise
        except Forged as exc:
            self.fault = self.fault or f"sent {exc}"
            raise
        except StopIteration as exc:  # it must not end a loop of the test
            if self.names_stop or (question == "act" and values[0] == "__next__"):
                raise
            new = RuntimeError(f"the program raised StopIteration: {exc}")
            self.from_program.append(new)
            raise new from exc
        except ValueError as exc:
            if not self.is_from_program(exc):
                raise self.refuse(f"the test gives the program {exc}") from exc
            raise

    def _read_answer(self, frame: list[Any]) -> tuple[bool, Any]:
        is_raised, value = super()._read_answer(frame)
        if is_raised:
            self.from_program = [*self.from_program[-50:], value]
        return is_raised, value

    def is_from_program(self, exc: BaseException) -> bool:
        """True if the program has raised this exception in the present test."""
        return any(exc is each for each in self.from_program)

    # What the tests may ask

    def refuse(self, why: str) -> BaseException:
        """Return the exception for what cannot be done from here."""
        self.unplayable = self.unplayable or why
        return Unplayable(why)

    def patch(self, target: Any, name: str, *value: Any) -> None:
        """Replace an attribute in the program's process too; without a value, put it back. Raises: Unplayable."""
        place = place_of(target, name)
        if place is None or place in SEEN or self.is_gone or self.fault:
            return
        if problem := problem_of(place, target, *value):
            raise self.refuse(problem)
        self.ask("patch", *place, *value)

    def act(self, name: str, ref: Ref, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return what the special method of the program's object returns, where the program may decide it."""
        if args and name in WITH_OPERAND:
            decided, value = self._compared(name, ref, x, args[0])
            if decided:
                return value
        if name == "__contains__" and not ref.is_made and ref_of(args[0]) is None:
            return any(item is args[0] or item == args[0] for item in x)
        if name in ("__exit__", "__aexit__"):
            return self._leave(name, x, *args)
        self.is_given_back = not (name.startswith("__i") and name in WITH_OPERAND)
        try:
            return self.ask("act", name, x, *args, **kwargs)
        finally:
            self.is_given_back = True

    def _leave(self, name: str, x: Any, kind: Any = None, exc: Any = None, *_: Any) -> Any:
        """Return what `__exit__` or `__aexit__` of the program's object says. It cannot end what ends the test."""
        if kind is not None and str(kind.__module__).startswith(f"{__package__}."):
            return False
        result = self.ask("act", name, x, kind, exc, None)
        result = bool(result) if isinstance(result, Proxy) else result
        if result and isinstance(exc, AssertionError) and not self.is_from_program(exc):
            self.failed_inside = self.failed_inside or str(exc) or "an assertion failed in a context of the program"
        return result

    def _compared(self, name: str, ref: Ref, x: Any, other: Any) -> tuple[bool, Any]:
        """Return (True, value) for an act with an operand that the program may not decide."""
        kind, is_equality = type(x)._verizero_kind, name in ("__eq__", "__ne__")
        is_comparison = is_equality or name in ("__lt__", "__le__", "__gt__", "__ge__")
        if is_equality and other is x:
            return True, name == "__eq__"
        if ref_of(other) is not None and isinstance(other, (Proxy, MirrorType)):
            if is_equality and "__eq__" not in kind.specials and not (name == "__ne__" and name in kind.specials):
                return True, NotImplemented
            return False, None
        if is_comparison and kind.base is not None and isinstance(other, _PLAIN):
            return True, ACTS[name](self.ask("plain", x), other)
        if not isinstance(other, _PLAIN) or other is None or (is_equality and "__eq__" not in kind.specials):
            return True, NotImplemented
        if ref.is_made and not is_comparison:
            return False, None
        if kind.is_named and name in kind.specials:
            raise self.refuse(f"{name} of {type(x).__name__} with {other!r:.40}, which only the program could answer")
        return True, NotImplemented

    def get(self, ref: Ref, x: Any, name: str) -> Any:
        """Return an attribute of the program's object."""
        kind = None if type(x) is MirrorType else type(x)._verizero_kind
        if kind is not None and not ref.is_made and (name in _TELLING or name in _OF_PLAIN):
            return self._get_of_plain(kind, x, name)
        if kind is not None and type(x).__name__ == "coroutine" and name in ("send", "close", "throw"):
            return lambda *_: self._end_coroutine(ref, x, name)
        value = self.ask("get", x, name)
        if isinstance(value, MirrorType) and type(x) is MirrorType and x._verizero_kind.is_named:
            value._verizero_kind.is_named = True  # a class within a class
        return value

    def _get_of_plain(self, kind: Kind, x: Any, name: str) -> Any:
        """Return an attribute that plain values have too, where the test calls it to compare."""
        if name in _OF_PLAIN and kind.is_named:
            return self.ask("get", x, name)
        if kind.base is not None and isinstance(plain := self.ask("plain", x), (*_PLAIN, collections.deque)):
            return getattr(plain, name)
        if kind.is_named:
            raise self.refuse(f"{type(x).__name__}.{name}, which may tell the program what the test expects")
        if name in _OF_PLAIN and not isinstance(value := self.ask("get", x, name), Proxy):
            return value
        raise AttributeError(f"{type(x).__name__!r} object of the program has no attribute {name!r} for this test")

    def _end_coroutine(self, ref: Ref, x: Any, name: str) -> None:
        if name == "send":
            raise StopIteration(self.act("__await__", ref, x))

    def make(self, kind: MirrorType, args: Any, kwargs: Any) -> Any:
        """Return a new instance of a class of the program, which this test has made."""
        made = self.ask("call", kind, *args, **kwargs)
        if kind._verizero_kind.is_named and isinstance(made, Proxy) and issubclass(type(made), kind):
            made._verizero.is_made = True
        return made

    def named(self, name: str) -> Any:
        """Return a global of the program that the test names. Raises: AttributeError if there is none."""
        obj = self.ask("name", name)
        if isinstance(obj, MirrorType):
            obj._verizero_kind.is_named = name in self.classes
        return obj

    # What the program may ask

    def answer(self, frame: list[Any]) -> None:
        """Do what the program asks of an object of the test, and of nothing else."""
        try:
            question, nodes = frame[1], frame[2]
            if question in ("act", "get", "set", "delete", "call"):
                target = nodes[question == "act"]
                if type(target) is not list or target[0] != "m":
                    raise TypeError
            elif question not in ("input", "stdin"):
                raise TypeError
        except (TypeError, IndexError, KeyError) as exc:
            raise self.failed("a question that no object of the test answers") from exc
        super().answer(frame)

    def note_raised(self, exc: BaseException) -> None:
        """Note an exception of the test that goes to the program. A failed assertion fails the test in any case."""
        if isinstance(exc, AssertionError) and not self.is_from_program(exc):
            self.failed_inside = self.failed_inside or str(exc) or "an assertion failed in a call of the program"
        super().note_raised(exc)

    def _guarded_act(self, name: str, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._do_act(name, x, *args, **kwargs)

    def _guarded_get(self, x: Any, name: str) -> Any:
        if name in _OF_FUNCTIONS and not isinstance(x, _BARE):
            return getattr(x, name)
        if name == "__signature__" and isinstance(x, _FUNCTIONS):
            return _signature(x)
        if _is_mock(x) and name.startswith("_") and not name.startswith(_OF_MOCKS_ALONE) and not hasattr(type(x), name):
            return getattr(x, name)
        is_closed = isinstance(x, (*_FUNCTIONS, *_HIDDEN, *_BARE)) and name not in ("send", "throw", "close")
        if is_closed or name.startswith("_") or (name in _OF_MOCKS and _is_mock(x)):
            raise AttributeError(f"{type(x).__name__!r} object of the test has no attribute {name!r}")
        return getattr(x, name)

    def _guarded_set(self, x: Any, name: str, *value: Any) -> None:
        is_closed = isinstance(x, (*_FUNCTIONS, *_HIDDEN, type)) or callable(getattr(type(x), name, None))
        if _is_mock(x):
            is_closed = hasattr(type(x), name) or isinstance(value[0] if value else None, (Proxy, MirrorType))
        if name.startswith("_") or is_closed:
            raise AttributeError(f"{name!r} of an object of the test")
        if value:
            setattr(x, name, value[0])
        else:
            delattr(x, name)


def _signature(function: Any) -> list[Any]:
    """Return what comes back, and name, kind, default and annotation of each parameter, each a list of at most one."""
    import inspect

    signature, empty = inspect.signature(function), inspect.Parameter.empty

    def known(x: Any) -> list[Any]:
        return [] if x is empty else [x]

    rows = [(p.name, int(p.kind), known(p.default), known(p.annotation)) for p in signature.parameters.values()]
    return [known(signature.return_annotation), rows]


def _is_mock(x: Any) -> bool:
    mock: Any = sys.modules.get("unittest.mock")
    return mock is not None and isinstance(x, mock.NonCallableMock)


class ProgramModule(types.ModuleType):
    """The module that `import solution` gives: each name is asked of the program.

    `from solution import *` gives the names in `wanted` only, or the program could replace `len` and `pytest`.
    """

    def __init__(self, port: TestsPort, names: list[str], wanted: Sequence[str]) -> None:
        super().__init__("solution")
        self.__dict__["_verizero"] = (port, names, wanted)

    def __getattr__(self, name: str) -> Any:
        port, names, wanted = self.__dict__["_verizero"]
        if name == "__all__":
            return [n for n in names if n in wanted and not n.startswith("_")]
        if name.startswith("__") or name not in names:
            raise AttributeError(f"the program defines no {name!r}")
        return port.named(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            self.__dict__["_verizero"][0].ask("rename", name, value)

    def __delattr__(self, name: str) -> None:
        self.__dict__["_verizero"][0].ask("rename", name)
