"""Run an untrusted Python program on its tests, in this process, and write down what came out.

Nothing here is trusted once the program runs: it can read and change every line of it. It never knew a verdict or an
expected value, so all it can forge is its own output. Calls that matter are bound at import, before any program.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import linecache
import os
import random
import resource
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from posix import _exit, write
from typing import Any

from . import codec, streams
from .wire import BAD_VALUE, FINISHED, FUNCTION, LEAVE, NO_MEMORY, RAISED, Order, Record

NAME = "main.py"
_FRAMES = 6
_now, _cpu = time.monotonic, time.process_time
_dumps, _loads = codec.encode, codec.decode


def run(order: Order, program: bytes, items: list[bytes]) -> None:
    """Run the program on the items and end this process. Never returns."""
    gc.enable()
    source = program.decode("utf-8", "surrogateescape")
    linecache.cache[NAME] = (len(source), None, source.splitlines(True), NAME)
    budget = _Budget(order)
    if order.kind == FUNCTION:
        _run_functions(source, items, budget)
    else:
        _run_scripts(source, items, budget)
    _exit(0)


def prepare(scratch: str) -> None:
    """Make the worker's interpreter look like a program's, once. Random numbers start alike in every run, so that the
    same program gets the same verdict.
    """
    os.environ["TMPDIR"] = scratch
    sys.argv[:] = [NAME]
    sys.dont_write_bytecode = True
    sys.path[:] = [p for p in sys.path if p and "worker" not in p]
    for name in [n for n in sys.modules if n == "worker" or n.startswith("worker.")]:
        del sys.modules[name]
    threading.stack_size(8 << 20)  # libc would reserve RLIMIT_STACK for each
    random.seed(0)


class _Budget:
    """Whether this process is still fresh enough for another test.

    Half of what one test may use is spent by all tests so far: a fresh process goes on, so that no test is stopped for
    what others used.
    """

    def __init__(self, order: Order) -> None:
        self.cpu = order.cpu_s / 2
        self.wall = _now() + order.wall_s / 2
        self.peak_kib = order.memory_mib << 9
        self.out = order.output_kib << 10

    def is_spent(self, out_end: int) -> bool:
        return (
            _cpu() > self.cpu
            or _now() > self.wall
            or out_end > self.out
            or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > self.peak_kib
        )


def _fresh_main(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    module.__dict__["__file__"] = NAME
    sys.modules["__main__"] = module
    return module


def _run_scripts(source: str, items: list[bytes], budget: _Budget) -> None:
    code: types.CodeType | None = None
    callbacks = atexit._ncallbacks()
    for number, item in enumerate(items):
        cpu, wall = _cpu(), _now()
        stdout = streams.give(item, number > 0)
        module = _fresh_main("__main__")
        state, status = FINISHED, 0
        try:
            if code is None:
                code = compile(source, NAME, "exec", dont_inherit=True)
            exec(code, module.__dict__)
        except BaseException as exc:
            state, status = _explain(exc)
        dirty = _wind_up(callbacks)
        if not streams.flush(stdout):
            state, status = max(state, RAISED), status or 120
        module.__dict__.clear()  # closes, and so flushes, what the program left open
        _write_record(state, status, cpu, wall, b"")
        if number + 1 < len(items) and (dirty or budget.is_spent(streams.ends()[0])):
            _exit(LEAVE)


def _wind_up(callbacks: int) -> bool:
    """Do what the interpreter does at exit; whether that left it unfit for another program."""
    dirty = False
    try:
        if threading.active_count() > 1:
            dirty = True
            threading._shutdown()  # type: ignore[attr-defined]
        if atexit._ncallbacks() > callbacks:
            dirty = True
            atexit._run_exitfuncs()
    except BaseException as exc:
        _explain(exc)
        dirty = True
    return dirty


def _run_functions(source: str, items: list[bytes], budget: _Budget) -> None:
    module = _fresh_main("solution")
    sys.modules["solution"] = module
    cpu, wall = _cpu(), _now()
    stdout = streams.give(b"", False)
    try:
        exec(compile(source, NAME, "exec", dont_inherit=True), module.__dict__)
    except BaseException as exc:
        state, _ = _explain(exc)
        streams.flush(stdout)
        for _ in items:
            _write_record(max(state, RAISED), 1, cpu, wall, b"")
        return
    for number, item in enumerate(items):
        state, value = FINISHED, b""
        try:
            call = _loads(item)
            value = _dumps(_resolve(module, call["fn"])(*call["args"], **call["kwargs"]), budget.out)
        except codec.Unencodable as exc:
            state = BAD_VALUE
            _explain(exc)
        except BaseException as exc:
            state, _ = _explain(exc)
            state = max(state, RAISED)  # leaving instead of returning is no result
        streams.flush(stdout)
        if len(value) > budget.out:
            state, value = BAD_VALUE, b""
        _write_record(state, 0 if state == FINISHED else 1, cpu, wall, value)
        if number + 1 < len(items) and budget.is_spent(streams.ends()[0]):
            _exit(LEAVE)
        cpu, wall = _cpu(), _now()


def _resolve(module: types.ModuleType, name: str) -> Callable[..., Any]:
    """The callable: a global, a dotted path, or a method of a class Solution, made anew for every call."""
    space = module.__dict__
    first, *rest = name.split(".")
    if first not in space and not rest and "Solution" in space:
        found: Any = getattr(space["Solution"](), first)
    elif first in space:
        found = space[first]
        for part in rest:
            found = getattr(found() if isinstance(found, type) else found, part)
    else:
        raise NameError(f"the program defines no {name!r}")
    return found  # type: ignore[no-any-return]


def _explain(exc: BaseException) -> tuple[int, int]:
    """State and exit code for an exception that ended a program; its traceback's tail goes to stderr."""
    if isinstance(exc, SystemExit):
        if exc.code is None or isinstance(exc.code, int):
            code = 0 if exc.code is None else exc.code & 0xFF
            return (FINISHED if code == 0 else RAISED), code
        text = str(exc.code) + "\n"
        write(streams.ERR, text.encode("utf-8", "backslashreplace")[-2000:])
        return RAISED, 1
    try:
        lines = traceback.format_exception(type(exc), exc, exc.__traceback__, limit=-_FRAMES, chain=False)
        write(streams.ERR, "".join(lines).encode("utf-8", "backslashreplace")[-4000:])
    except BaseException:  # no memory or no stack left, or a hostile __str__
        try:
            write(streams.ERR, type(exc).__name__.encode("utf-8", "replace") + b"\n")
        except BaseException:
            return RAISED, 1
    return (NO_MEMORY if isinstance(exc, MemoryError) else RAISED), 1


def _write_record(state: int, code: int, cpu: float, wall: float, value: bytes) -> None:
    try:
        out, err = streams.ends()
        data = memoryview(Record(code, state, _cpu() - cpu, _now() - wall, out, err, value).pack())
        while data:
            data = data[write(streams.LOG, data) :]
    except BaseException:  # the program closed our descriptors: this process can say nothing more
        _exit(code)
