"""The process of a suite that has the program: it does what the tests ask, and nothing here is trusted."""

from __future__ import annotations

import builtins
import collections
import gc
import linecache
import os
import resource
import sys
from importlib import import_module
from posix import _exit
from time import process_time
from typing import Any

from . import frames, harness, streams
from .link import Forged, Gone, Link
from .mirrors import Ref
from .patches import Replaced
from .port import Port

_SHOWN = ("__name__", "__doc__", "__qualname__", "__wrapped__", "__annotations__")
"""Attributes with underscores that an object of the tests shows."""
MAX_FRAME_MIB = 8
"""MiB of a value that travels between the processes of a suite."""


def run(order: tuple[Any, ...], program: bytes) -> None:
    """Load the program, and do what the tests ask until they end. Never returns."""
    gc.enable()
    source = program.decode("utf-8", "surrogatepass").removeprefix("\ufeff")
    port = _ProgramPort(Link(*frames.LINK, MAX_FRAME_MIB << 20), source)
    try:
        port.link.send(["hello", *port.load()])
        while True:
            port.answer(port.link.receive())
    except (Gone, Forged):
        _exit(0)


class _ProgramPort(Port):
    """The program's end of the link."""

    def __init__(self, link: Link, source: str) -> None:
        super().__init__(link, is_tests=False)
        self.source, self.replaced = source, Replaced()
        self.module, self.namespace = harness._fresh_main("solution")
        self.values.namespace = self.namespace
        sys.modules["solution"] = self.module
        self.stdout: Any = streams.fill_input(b"", False)
        self.stdin, self.input = sys.stdin, builtins.input
        self.sent = [0, 0]
        """Bytes of output and of errors that the tests have."""
        self.questions |= {
            "name": self._named,
            "reset": self._reset,
            "plain": _plain,
            "rename": self._rename,
            "records": self._share,
            "tool": _use_tool,
            "seed": _use_tool,
            "patch": self.replaced.patch,
        }
        linecache.cache[harness.NAME] = (lambda: self.source,)

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

    def _rename(self, name: str, *value: Any) -> None:
        """Give a global of the program another value; without one, delete it."""
        if value:
            self.namespace[name] = value[0]
        else:
            del self.namespace[name]

    def _reset(self) -> list[float]:
        """Forget all objects of the last test. Return the CPU seconds and the peak memory of this process."""
        self.replaced.put_back()
        self.values.forget_objects()
        return [process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]

    def ask(self, question: str, /, *values: Any, **named: Any) -> Any:
        """Ask the tests, which listen during a call only."""
        if not self.num_open:
            raise RuntimeError("the test has no call open")
        return super().ask(question, *values, **named)

    def extra(self) -> list[Any]:
        """Return what the program has written since the last frame."""
        return self._output()

    def _output(self) -> list[Any]:
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

    def take_extra(self, extra: list[Any]) -> None:
        """Free what the tests have released, and use the input and the arguments that they have put in place."""
        released, has_input, has_stdin, argv, environment = extra
        self.values.free(released)
        if has_input != (builtins.input is not self.input):
            builtins.input = self._ask_for_input if has_input else self.input
        if has_stdin != (sys.stdin is not self.stdin):
            sys.stdin = _TestsInput(self) if has_stdin else self.stdin
        if argv is not None:
            sys.argv[:] = argv
        if environment is not None:
            os.environ.clear()
            os.environ.update(zip(environment[::2], environment[1::2], strict=True))

    def _ask_for_input(self, prompt: object = "") -> Any:
        return self.ask("input", str(prompt))

    def get(self, ref: Ref, x: Any, name: str) -> Any:
        """Return an attribute of an object of the tests."""
        if name == "__signature__":
            return _signature(super().get(ref, x, name))
        if name.startswith("__") and name not in _SHOWN:
            raise AttributeError(name)
        return super().get(ref, x, name)


class _TestsInput:
    """The input that a test has put in place, while the program reads it."""

    def __init__(self, port: _ProgramPort) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port.ask("stdin"), name)

    def __iter__(self) -> Any:
        return iter(self._port.ask("stdin"))


def _signature(described: Any) -> Any:
    """Return the signature of a function of the tests, as they describe it."""
    import inspect

    def known(values: list[Any]) -> Any:
        return values[0] if values else inspect.Parameter.empty

    returned, rows = described
    parameters = [
        inspect.Parameter(p, inspect._ParameterKind(kind), default=known(default), annotation=known(annotation))
        for p, kind, default, annotation in rows
    ]
    return inspect.Signature(parameters, return_annotation=known(returned))


def _use_tool(module: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """Return what a function of the standard library returns for objects of the program."""
    return getattr(import_module(module), name)(*args, **kwargs)


def _plain(x: Any) -> Any:
    """Return the items of an object of a class derived from a container of Python's, in such a container."""
    if isinstance(x, dict):
        return dict(dict.items(x))
    kinds: tuple[Any, ...] = (list, set, bytearray, collections.deque)
    for kind in kinds:
        if isinstance(x, kind):
            return kind(kind.__iter__(x))
    return None


def _said(exc: BaseException) -> str:
    try:
        line = f", line {exc.lineno}" if isinstance(exc, SyntaxError) else ""
        return f"{type(exc).__name__}: {exc}{line}"[:300]
    except BaseException:
        return type(exc).__name__
