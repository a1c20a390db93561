"""The process of a suite that runs its tests. It has the expected values and the verdicts, and the program has neither.

It writes one record per test. The record's value is JSON: how the test ended, and why.
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
import resource
import sys
from posix import _exit
from time import monotonic, process_time, sleep
from typing import Any

from . import fixtures, frames, harness, patches, test_tools
from .link import Forged, Gone, Link
from .mirrors import ref_of
from .suite_port import ProgramModule, TestsPort, Unplayable
from .suite_program import MAX_FRAME_MIB

_FILE = "test"
_MODULES = ("solution", "main", "your_module")
"""Names by which a test imports the program."""
_MAX_TEXT = 300
_DYING_S = 0.02
"""Seconds in which a program that has closed its end of the link is dead, if it is dying."""
_WORD = re.compile(r"[A-Za-z_]\w*")
PASSED, IDLE, FAILED, RAISED, BROKEN, GONE, GONE_IDLE, FAULT, NO_MEMORY = (
    "passed", "idle", "failed", "raised", "broken", "gone", "gone_idle", "fault", "memory",
)  # fmt: skip
"""Ends of a test. idle: it calls nothing of the program. broken: the test is at fault. gone: the program has ended,
and gone_idle that it was not at work then. fault: the program has sent what no program may."""


def run(order: tuple[Any, ...], items: list[bytes]) -> None:
    """Run the tests against the program in the other process, and end this process. Never returns."""
    gc.enable()
    _, wall_s, cpu_s, memory_mib, output_kib, *_ = order
    port = TestsPort(Link(*frames.LINK, MAX_FRAME_MIB << 20), output_kib << 10)
    sys.stdin, sys.argv = io.StringIO(), ["test.py"]
    port.stdin, port.argv = sys.stdin, ["test.py"]
    budget = _Budget(wall_s, cpu_s, memory_mib)
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
        if budget.is_spent(used):
            break
    else:
        _exit(0)
    _exit(0 if number + 1 == len(items) else frames.LEAVE)


def _greet(port: TestsPort) -> tuple[int, str, list[str]]:
    """Return the state of the loaded program, why it could not be loaded, and its names. Raises: Gone; Forged."""
    frame = port.link.receive()
    try:
        hello, state, why, names, _ = frame
        if hello != "hello" or not all(isinstance(n, str) for n in names):
            raise ValueError
        return int(state), str(why)[:_MAX_TEXT], names
    except (TypeError, ValueError) as exc:
        raise port.failed("no greeting") from exc


class _Budget:
    """The time and memory that tests may use together in one pair of processes: half of the limits of one test."""

    def __init__(self, wall_s: float, cpu_s: float, memory_mib: int) -> None:
        self.end, self.cpu_s, self.peak_kib = monotonic() + wall_s / 2, cpu_s / 2, memory_mib << 9

    def is_spent(self, used: Any) -> bool:
        """True if it is used up. `used`: CPU seconds and peak memory in KiB, as the program's process says."""
        try:
            cpu_s, peak_kib = used
            if cpu_s > self.cpu_s or peak_kib > self.peak_kib:
                return True
        except (TypeError, ValueError):
            return True
        own_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return process_time() > self.cpu_s or monotonic() > self.end or own_kib > self.peak_kib


def _write(end: str, why: str) -> None:
    data = json.dumps({"end": end, "why": why[:_MAX_TEXT]}).encode()
    harness._write_record(frames.FINISHED, 0, data)


class _Test:
    """One test: its source, the program's names in it, and the function to call, if any."""

    def __init__(self, port: TestsPort, test: dict[str, Any], names: list[str]) -> None:
        self.port, self.source, self.function = port, test["source"], test.get("function")
        self.names, self.classes, self.program_names = test["names"], test["classes"], names
        self.records = tuple(test.get("records", ()))
        self.has_constants = False

    def run(self) -> tuple[str, str]:
        """Run the test; return how it ended, and why."""
        port = self.port
        port.begin(self.source, self.classes)
        kept = (sys.stdout, sys.stderr, sys.stdin, builtins.input, dict(os.environ), os.getcwd())
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        random.seed(0)
        end: BaseException | None = None
        try:
            self._run_source()
        except BaseException as exc:
            end = exc
        finally:
            sys.stdout, sys.stderr, sys.stdin, builtins.input = kept[:4]
            sys.argv = ["test.py"]
            if dict(os.environ) != kept[4]:
                os.environ.clear()
                os.environ.update(kept[4])
            os.chdir(kept[5])
        return self._ending(end)

    def _run_source(self) -> None:
        sys.modules["pytest"] = test_tools.module()
        for name in (*_MODULES, "test"):  # the last for patches of f"{__name__}.f"
            sys.modules[name] = ProgramModule(self.port, self.program_names, self.names)
        space: dict[str, Any] = {"__name__": "test", "__builtins__": builtins, "_verizero_said": said}
        if "mock" in self.source:
            patches.play_mock(self.port.patch)
        if "seed" in self.source:
            fixtures.share_seeds(self.port, self.source)
        if "dataclasses" in self.source:
            fixtures.share_dataclasses(self.port)
        self.port.values.namespace = space
        if self.records != self.port.values.records:
            self.port.ask("records", *self.records)
            self.port.values.records = self.records
        known = set(self.program_names)
        for name in self.names:
            if name in known:
                space[name] = self.port.named(name)
                self.has_constants = self.has_constants or (name in self.source and ref_of(space[name]) is None)
        exec(compile(self.source, _FILE, "exec", dont_inherit=True), space)
        if self.function:
            test_tools.call(space, self.function, self.port)

    def _ending(self, exc: BaseException | None) -> tuple[str, str]:
        port = self.port
        if port.fault:
            return FAULT, f"the program {port.fault}"
        if port.is_gone:
            sleep(_DYING_S)
            return GONE if port.was_asked or port.num_calls > 1 else GONE_IDLE, "the program ended"
        if port.unplayable:
            return BROKEN, f"cannot be played: {port.unplayable}"
        if port.failed_inside:
            return FAILED, port.failed_inside
        if exc is None:
            return (PASSED, "") if port.num_calls or self.has_constants else (IDLE, "")
        if isinstance(exc, test_tools.Skipped):
            return IDLE, str(exc)
        text = f"{type(exc).__name__}: {_text(exc)}".removesuffix(": ")
        if port.is_from_program(exc):
            line = self._line(exc)
            if isinstance(exc, PermissionError) and exc.errno == errno.EPERM:
                text = f"{text} ({harness.REFUSED})"
            return RAISED, f"{line}: {text}" if line else text
        if isinstance(exc, Unplayable):
            return BROKEN, f"cannot be played: {exc}"
        if self._is_broken(exc):
            return BROKEN, text
        if isinstance(exc, AssertionError):
            return FAILED, _text(exc) or f"{self._line(exc)} failed"
        return FAILED, f"{self._line(exc)}: {text}"

    def _is_broken(self, exc: BaseException) -> bool:
        """True if the test itself is at fault, whatever the program is."""
        if isinstance(exc, ModuleNotFoundError):
            return exc.name not in _MODULES
        if isinstance(exc, NameError) and exc.name in self.names:
            return False
        if isinstance(exc, (ImportError, AttributeError)) and any(m in self.source for m in _MODULES):
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
                if ref_of(frame.f_locals.get(word, frame.f_globals.get(word))) is not None:
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
