"""The process of a suite that runs its tests. It has the expected values and verdicts, and the program has neither.

It writes one record per test. The record's value is JSON: how the test ended, and why. No comparison with a value of
the test is asked of the program, or it could answer what the test wants to hear: what the program returns travels
whole, and an object that does not is a number here. It equals nothing, and can only be called, asked for its next item,
or given back.
"""

from __future__ import annotations

import builtins
import errno
import gc
import io
import json
import os
import random
import re
import sys
import types
from collections.abc import Sequence
from posix import _exit, ftruncate, lseek, write
from time import sleep
from typing import Any

from . import frames, harness, streams, test_tools
from .frames import Forged, Gone, Link
from .suite_program import CALLABLE, EMPTY, ITERATOR, MAX_FRAME_MIB
from .suite_values import Values, name_of

_FILE = "test"
_NO_EXCEPTIONS_OF = ("unittest", "pytest", "_pytest", "worker")
"""Modules whose exceptions mean something to this process: a program cannot raise them here."""
_MAX_TEXT = 300
_DYING_S = 0.02
"""Seconds in which a program that has closed its end of the link is dead, if it is dying."""
_CONSTANTS = {int, str, float}
_WORD = re.compile(r"[A-Za-z_]\w*")
PASSED, IDLE, FAILED, RAISED, BROKEN, GONE, GONE_IDLE, FAULT, NO_MEMORY = (
    "passed", "idle", "failed", "raised", "broken", "gone", "gone_idle", "fault", "memory",
)  # fmt: skip
"""Ends of a test. idle: it calls nothing of the program. broken: the test is at fault. gone: the program has ended,
and gone_idle that it was not at work then. fault: the program has sent what no program may."""
_PREPARING = ("name", "records", "reset")
"""Questions that are no calls of the program."""


class Unplayable(BaseException):
    """The test does what cannot be done across two processes."""


class ProgramObject:
    """An object in the program's process."""

    __slots__ = ("_number", "_port", "_text", "_truth")

    def __init__(self, port: _Port, number: int, text: str, truth: bool) -> None:
        self._port, self._number, self._text, self._truth = port, number, text, truth

    def __repr__(self) -> str:
        return f"<{self._text} object>"

    def __bool__(self) -> bool:
        return self._truth


class ProgramFunction(ProgramObject):
    """A function or class of the program."""

    __slots__ = ("__name__",)
    __name__: str

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        result = self._port.ask("call", self, *args, **kwargs)
        return Solution(result) if type(self) is SolutionClass and type(result) is ProgramObject else result


class ProgramIterator(ProgramObject):
    """An iterator of the program."""

    __slots__ = ()

    def __iter__(self) -> ProgramIterator:
        return self

    def __next__(self) -> Any:
        items = self._port.ask("next", self)
        if not items:
            raise StopIteration
        return items[0]


class Solution:
    """An instance of the class around a function on sites of puzzles, which the test itself has made."""

    def __init__(self, made: ProgramObject) -> None:
        self.__dict__["_made"] = made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._made._port.ask("attribute", self._made, name)


class SolutionClass(ProgramFunction):
    """The class `Solution` of the program, for tests that name it."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._port.ask("attribute", self, name)


class _TestsValues(Values):
    """The values of the tests' side, which believes nothing that it decodes."""

    def __init__(self, port: _Port) -> None:
        super().__init__(False)
        self.port = port
        self.objects: dict[int, ProgramObject] = {}
        self.classes: dict[int, type[BaseException]] = {}

    def forget_objects(self) -> None:
        """Forget the objects of the program; classes stay known."""
        self.objects.clear()

    def encode_other(self, x: Any, depth: int) -> Any:
        """Return the number of an object of the program, or a name of Python's. Raises: Unplayable."""
        if isinstance(x, Solution):
            x = x._made
        if isinstance(x, ProgramObject):
            return ["m", x._number]
        if (name := name_of(x, False)) is not None:
            return ["T", *name]
        raise self.port.refuse(f"it gives the program a {type(x).__name__} of its own")

    def decode_other(self, node: list[Any], depth: int) -> Any:
        """Return an object of the program, an exception or its class."""
        if node[0] == "e":
            return self._exception(node, depth)
        if node[0] == "k":
            return self._class(node)
        tag, number, text, what = node
        if tag != "h" or type(number) is not int or type(text) is not str:
            raise Forged("a tag that is unknown")
        if number not in self.objects:
            kind = {CALLABLE: ProgramFunction, ITERATOR: ProgramIterator}.get(what, ProgramObject)
            self.objects[number] = kind(self.port, number, text, True)
        self.objects[number]._truth = what != EMPTY  # it may have changed
        return self.objects[number]

    def _class(self, node: list[Any]) -> type[BaseException]:
        """Return a class of exceptions: one of Python's, or one with names, bases and attributes of the program's."""
        if node[0] == "T":
            return _require(python_exception("builtins", node[1]))
        _, number, module, name, bases, names, values = node
        if number not in self.classes:
            known = [self._class(base) for base in bases]
            if (
                not all(type(n) is str and not n.startswith("_") for n in names)
                or not set(map(type, values)) <= _CONSTANTS
            ):
                raise Forged("a class that is none")
            space = dict(zip(names, values, strict=True)) | {"__str__": _text_of_exception, "__module__": str(module)}
            named = python_exception(str(module), str(name))
            self.classes[number] = named or _require(type(str(name).rpartition(".")[2], tuple(known), space))
        return self.classes[number]

    def _exception(self, node: list[Any], depth: int) -> BaseException:
        _, class_node, arg_nodes, attribute_nodes, text, cause = node
        kind = self._class(class_node)
        exc = _new_exception(kind, [self.decode(n, depth + 1) for n in arg_nodes])
        if kind.__str__ is _text_of_exception:
            exc.__dict__["_verizero_text"] = text
        for name, value_node in zip(attribute_nodes[::2], attribute_nodes[1::2], strict=True):
            value = self.decode(value_node, depth + 1)
            if (name.startswith("_") and name != "__notes__") or callable(getattr(kind, name, None)):
                raise Forged("an attribute that is none, or a method")
            if not hasattr(kind, name):
                exc.__dict__[name] = value
            elif value is not getattr(exc, name, None):  # an OSError whose `filename` was set to None would show it
                setattr(exc, name, value)
        if cause is not None:
            exc.__cause__ = self._exception(cause, depth + 1)
        return exc


def python_exception(module: str, name: str) -> type[BaseException] | None:
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


def _require(kind: type | None) -> type[BaseException]:
    if kind is None or not issubclass(kind, BaseException):
        raise Forged("an exception that is none")
    return kind


def _text_of_exception(self: Any) -> str:
    return str(self.__dict__.get("_verizero_text", ""))


def _new_exception(kind: type[BaseException], args: list[Any]) -> BaseException:
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
    if type(made) is not kind:
        raise Forged("an exception of another class")
    return made


class _Port:
    """The tests' end of the link."""

    def __init__(self, link: Link, max_output: int) -> None:
        self.link, self.max_output, self.num_output = link, max_output, 0
        self.values = _TestsValues(self)
        self.fault = ""
        """The act of the program that ends its run; empty if there is none."""
        self.was_asked = False
        """True once a part of the last question was sent: the program was there then."""
        self.begin("")

    def begin(self, source: str) -> None:
        """Prepare for the next test."""
        self.num_calls, self.unplayable, self.is_gone = 0, "", False
        self.from_program: list[BaseException] = []
        self.names_stop = "StopIteration" in source

    def failed(self, why: str) -> Forged:
        """Return the exception for a frame that no honest program sends."""
        self.fault = self.fault or f"sent {why}"
        return Forged(why)

    def refuse(self, why: str) -> Unplayable:
        """Return the exception for what cannot be done from here."""
        self.unplayable = self.unplayable or why
        return Unplayable(why)

    def named(self, name: str) -> Any:
        """Return a global of the program that the test names. Raises: AttributeError if there is none."""
        named = self.ask("name", name)
        if type(named) is ProgramFunction:
            kind = SolutionClass if name == "Solution" else ProgramFunction
            named = kind(self, named._number, named._text, True)
            named.__name__ = name
        return named

    def ask(self, question: str, /, *values: Any, **named: Any) -> Any:
        """Return the program's answer. Raises: what it raises; Unplayable; Gone; Forged."""
        begin = None if self.num_calls else lseek(streams.OUT, 0, 2)
        if begin is not None:
            write(streams.OUT, b".")  # if this process is killed, it shows that the test has called the program
        self.num_calls += question not in _PREPARING
        if self.fault or self.is_gone:
            raise Gone("the program ended before")
        try:
            is_raised, value = self._answer_to(question, values, named)
            if begin is not None and not self.num_calls:
                ftruncate(streams.OUT, begin)
                lseek(streams.OUT, begin, 0)
        except Gone:
            self.is_gone = True
            raise
        except Forged as exc:
            self.fault = self.fault or f"sent {exc}"
            raise
        if not is_raised:
            return value
        if isinstance(value, StopIteration) and not self.names_stop:  # it must not end a loop of the test
            value = RuntimeError(f"the program raised StopIteration: {value}")
        self.from_program = [*self.from_program[-50:], value]
        raise value

    def _answer_to(self, question: str, values: Sequence[Any], named: dict[str, Any]) -> tuple[bool, Any]:
        encode = self.values.encode
        self.values.begin_call()
        self.was_asked = False
        try:
            nodes = [encode(value) for value in (*values, *named.values())]
            self.link.send(["?", question, nodes, list(named), self.values.changes()])
        except ValueError as exc:
            raise self.refuse(f"it gives the program {exc}") from exc
        finally:
            self.was_asked = self.link.is_begun
        frame = self.link.receive()
        try:
            sign, node, changed, output = frame
            if sign == "#":
                raise self.failed(str(node))
            value = self.values.decode(node)
            self.values.apply(changed)
            for text, stream in zip(output, (sys.stdout, sys.stderr), strict=True):
                self.num_output += len(text)
                if self.num_output > self.max_output:
                    raise self.failed(f"more than {self.max_output >> 10} KiB of output")
                stream.write(text)
            if sign not in ("!", "^") or (sign == "^" and not isinstance(value, BaseException)):
                raise Forged("an exception that is none")
        except (Forged, MemoryError):
            raise
        except Exception as exc:
            raise self.failed(f"what nobody can read: {type(exc).__name__}") from exc
        return sign == "^", value


class _ProgramModule(types.ModuleType):
    """The module that `import solution` gives: each name is asked of the program.

    `from solution import *` gives the names in `wanted` only, or the program could replace `len` and `pytest`.
    """

    def __init__(self, port: _Port, names: list[str], wanted: Sequence[str]) -> None:
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
        if not name.startswith("__"):
            raise self.__dict__["_verizero"][0].refuse(f"it changes {name} of the program")
        super().__setattr__(name, value)


def run(order: tuple[Any, ...], items: list[bytes]) -> None:
    """Run the tests against the program in the other process, and end this process. Never returns."""
    gc.enable()
    budget = harness.Budget(order)
    port = _Port(Link(*frames.LINK, MAX_FRAME_MIB << 20), budget.out)
    sys.stdin, sys.argv = io.StringIO(), ["test.py"]
    try:
        state, why, names = _greet(port)
    except (Gone, Forged) as exc:
        sleep(_DYING_S)
        _write(GONE if isinstance(exc, Gone) else FAULT, port.fault or "it ended while it was loaded")
        _exit(frames.LEAVE)
    for number, item in enumerate(items):
        test = json.loads(item)
        if state != frames.FINISHED:
            _write(NO_MEMORY if state == frames.NO_MEMORY else RAISED, f"the program {why}")
            continue
        _write(*_Test(port, test, names).run())
        if port.fault or number + 1 == len(items):
            break
        try:
            used = port.ask("reset")
        except (Gone, Forged):
            break
        port.values.forget_objects()
        if _is_spent(budget, used):
            break
    else:
        _exit(0)
    _exit(0 if number + 1 == len(items) else frames.LEAVE)


def _greet(port: _Port) -> tuple[int, str, list[str]]:
    """Return the state of the loaded program, why it could not be loaded, and its names. Raises: Gone; Forged."""
    frame = port.link.receive()
    try:
        hello, state, why, names, _ = frame
        if hello != "hello" or not all(isinstance(n, str) for n in names):
            raise ValueError
        return int(state), str(why)[:_MAX_TEXT], names
    except (TypeError, ValueError) as exc:
        raise port.failed("no greeting") from exc


def _is_spent(budget: harness.Budget, used: Any) -> bool:
    """True if the budget is used up. `used`: CPU seconds and peak memory in KiB, as the program's process says."""
    try:
        cpu_s, peak_kib = used
        return bool(cpu_s > budget.cpu or peak_kib > budget.peak_kib) or budget.is_spent(0)
    except (TypeError, ValueError):
        return True


def _write(end: str, why: str) -> None:
    data = json.dumps({"end": end, "why": why[:_MAX_TEXT]}).encode()
    harness._write_record(frames.FINISHED, 0, data)


class _Test:
    """One test: its source, the program's names in it, and the function to call, if any."""

    def __init__(self, port: _Port, test: dict[str, Any], names: list[str]) -> None:
        self.port, self.source, self.function = port, test["source"], test.get("function")
        self.names, self.program_names = test["names"], names
        self.records = tuple(test.get("records", ()))
        self.has_constants = False

    def run(self) -> tuple[str, str]:
        """Run the test; return how it ended, and why."""
        self.port.begin(self.source)
        kept = (sys.stdout, sys.stderr, sys.stdin, dict(os.environ), os.getcwd())
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        random.seed(0)
        end: BaseException | None = None
        try:
            self._run_source()
        except BaseException as exc:
            end = exc
        finally:
            sys.stdout, sys.stderr, sys.stdin = kept[:3]
            if dict(os.environ) != kept[3]:
                os.environ.clear()
                os.environ.update(kept[3])
            os.chdir(kept[4])
        return self._ending(end)

    def _run_source(self) -> None:
        sys.modules["pytest"] = test_tools.module()
        for name in frames.MODULES:
            sys.modules[name] = _ProgramModule(self.port, self.program_names, self.names)
        space: dict[str, Any] = {"__name__": "test", "__builtins__": builtins, "_verizero_said": said}
        self.port.values.namespace = space
        if self.records != self.port.values.records:
            self.port.ask("records", *self.records)
            self.port.values.records = self.records
        known = set(self.program_names)
        for name in self.names:
            if name in known:
                space[name] = self.port.named(name)
                is_constant = not isinstance(space[name], (ProgramObject, type))
                self.has_constants = self.has_constants or (name in self.source and is_constant)
        exec(compile(self.source, _FILE, "exec", dont_inherit=True), space)
        if self.function:
            test_tools.call(space, self.function)

    def _ending(self, exc: BaseException | None) -> tuple[str, str]:
        port = self.port
        if port.fault:
            return FAULT, f"the program {port.fault}"
        if port.is_gone:
            sleep(_DYING_S)
            return GONE if port.was_asked or port.num_calls > 1 else GONE_IDLE, "the program ended"
        if port.unplayable:
            return BROKEN, f"cannot be played across two processes: {port.unplayable}"
        if exc is None:
            return (PASSED, "") if port.num_calls or self.has_constants else (IDLE, "")
        if isinstance(exc, test_tools.Skipped):
            return IDLE, str(exc)
        text = f"{type(exc).__name__}: {_text(exc)}".removesuffix(": ")
        if any(exc is each for each in port.from_program):
            line = self._line(exc)
            if isinstance(exc, PermissionError) and exc.errno == errno.EPERM:
                text = f"{text} ({harness.REFUSED})"
            return RAISED, f"{line}: {text}" if line else text
        if self._is_broken(exc):
            return BROKEN, text
        if isinstance(exc, AssertionError):
            return FAILED, _text(exc) or f"{self._line(exc)} failed"
        return FAILED, f"{self._line(exc)}: {text}"

    def _is_broken(self, exc: BaseException) -> bool:
        """True if the test itself is at fault, whatever the program is."""
        if isinstance(exc, ModuleNotFoundError):
            return exc.name not in frames.MODULES
        if isinstance(exc, NameError) and exc.name in self.names:
            return False
        if isinstance(exc, (ImportError, AttributeError)) and any(m in self.source for m in frames.MODULES):
            return False
        if self.port.num_calls or self.has_constants:
            return False
        return not (isinstance(exc, (TypeError, AttributeError, AssertionError)) and self._uses_program(exc))

    def _uses_program(self, exc: BaseException) -> bool:
        """True if a line that raised the exception names an object of the program: it may be of a wrong kind."""
        lines, trace = self.source.split("\n"), exc.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            line = lines[trace.tb_lineno - 1] if frame.f_code.co_filename == _FILE else ""
            for word in _WORD.findall(line):
                if isinstance(frame.f_locals.get(word, frame.f_globals.get(word)), ProgramObject):
                    return True
            trace = trace.tb_next
        return False

    def _line(self, exc: BaseException) -> str:
        """Return the line of the test at which an exception left it."""
        number, trace = 0, exc.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _FILE:
                number = trace.tb_lineno
            trace = trace.tb_next
        lines = self.source.split("\n")
        line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        return line.removeprefix("_verizero_left = ").removeprefix("_verizero_right = ")[:120]


def said(text: str, got: Any, message: Any = None) -> str:
    """Return the text of a failed assertion: what it says, and what was got."""
    try:
        shown = repr(got)[:100]
    except Exception as exc:
        shown = f"<its repr raised {type(exc).__name__}>"
    return f"{text}: got {shown}" if message is None else f"{text}: got {shown}: {_text(message)}"


def _text(x: Any) -> str:
    try:
        return str(x)[:_MAX_TEXT]
    except Exception:
        return ""
