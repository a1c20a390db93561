"""Run an untrusted Python program on its tests, in this process, and record the results.

Nothing here is trusted once the program runs: the program can read and change all of it. This process has no verdict
and no expected value, so a program can forge nothing but its own output.
"""

from __future__ import annotations

import _sitebuiltins
import atexit
import builtins
import errno
import gc
import json
import linecache
import os
import random
import resource
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable
from posix import _exit, lseek, write
from time import monotonic, process_time
from typing import Any

from . import codec, stand_ins, streams
from .frames import BAD_VALUE, FINISHED, FUNCTION, LEAVE, NO_MEMORY, RAISED, RECORD
from .streams import ERR, LOG, OUT

NAME = "main.py"
_HARNESS_FILES = (__file__, os.path.join(os.path.dirname(__file__), "cells.py"))
"""Files whose lines a traceback leaves out."""
_MAX_FRAMES = 6
_ROOM = os.statvfs_result((4096, 4096, 4096, 4096, 4096, 2048, 2048, 2048, 0, 255))
"""The room that every path seems to have: 16 MiB and 2048 files."""
REFUSED = "the sandbox refused it: a program has threads and files, but no other processes, sockets or rights"


def run(order: tuple[Any, ...], program: bytes, items: list[bytes]) -> None:
    """Run the program on the items under an unpacked `Order`, and end this process. Never returns."""
    gc.enable()
    try:
        source = program.decode()
    except UnicodeDecodeError:
        source = program.decode("utf-8", "surrogateescape")
    source = source.removeprefix("\ufeff")  # a byte order mark, which is no part of the program
    linecache.cache[NAME] = (lambda: source,)  # read when a traceback is printed
    if order[0] == FUNCTION:
        _run_functions(source, items, order)
    else:
        _run_scripts(source, items, order)
    _exit(0)


def prepare(scratch: str, packages: str) -> None:
    """Make the worker's interpreter look as if it had just started the program.

    Random numbers start with the same seed in every run, so that the same program gets the same verdict. Integers may
    have any number of digits, as on contests' judges: CPU time is limited, so CPython's limit of 4,300 protects nobody.
    `packages` is a folder of packages besides the standard library; empty for none.
    """
    os.environ["TMPDIR"] = scratch
    for ours in ("LD_BIND_NOW", "PYTHONHASHSEED"):
        os.environ.pop(ours, None)
    sys.set_int_max_str_digits(0)
    _add_names_of_site()
    os.statvfs = lambda path: _ROOM  # seccomp closes the real one, which tells how full the host's disks are
    stand_ins.install()
    sys.argv[:] = [NAME]
    sys.dont_write_bytecode = True
    sys.path[:] = [p for p in sys.path if p and "worker" not in p] + ([packages] if packages else [])
    if packages:  # each would start a thread for every core
        os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    for name in [n for n in sys.modules if n == "worker" or n.startswith("worker.")]:
        del sys.modules[name]
    threading.stack_size(8 << 20)  # libc would reserve RLIMIT_STACK for each thread
    random.seed(0)


def _add_names_of_site() -> None:
    """Add the names that `site` adds to builtins. To import `site` itself would make each child slower."""
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    for name, text in (
        ("copyright", sys.copyright), ("license", "See https://www.python.org/psf/license/"),
        ("credits", "See www.python.org for more information."),
    ):  # fmt: skip
        setattr(builtins, name, _sitebuiltins._Printer(name, text))
    builtins.help = _sitebuiltins._Helper()


class Budget:
    """The time, memory and output that the tests of one process may use together: half the limits of one test.

    Once it is spent, a fresh process runs the rest. So no test is stopped for what the others before it have used.
    """

    def __init__(self, order: tuple[Any, ...]) -> None:
        _, wall_s, cpu_s, memory_mib, output_kib, *_ = order
        self.cpu = cpu_s / 2
        self.wall = monotonic() + wall_s / 2
        self.peak_kib = memory_mib << 9
        self.out = output_kib << 10

    def is_spent(self, out_end: int) -> bool:
        """True if it is used up, with `out_end` bytes of output."""
        return bool(
            process_time() > self.cpu
            or monotonic() > self.wall
            or out_end > self.out
            or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > self.peak_kib
        )


def _fresh_main(name: str) -> tuple[types.ModuleType, dict[str, Any]]:
    module = types.ModuleType(name)
    namespace = module.__dict__
    namespace["__builtins__"] = builtins
    namespace["__file__"] = NAME
    sys.modules["__main__"] = module
    return module, namespace


def _run_scripts(source: str, items: list[bytes], order: tuple[Any, ...]) -> None:
    """Run the program once per item, each time in a namespace of its own. Takes the items: their memory is needed."""
    code: types.CodeType | None = None
    budget = Budget(order) if len(items) > 1 else None
    callbacks, names = atexit._ncallbacks(), dict(vars(builtins))
    empties_output = "/dev/stdout" in source  # to open it is to empty it, with what tests before have printed
    num_items = len(items)
    items.reverse()
    while items:
        stdout = streams.fill_input(items.pop(), len(items) + 1 < num_items)
        namespace = _fresh_main("__main__")[1]
        state, status = FINISHED, 0
        try:
            if code is None:
                code = compile(source, NAME, "exec", dont_inherit=True)
            exec(code, namespace)
        except BaseException as exc:
            state, status = _explain(exc)
        streams.flush()
        is_unfit = _run_exit_handlers(callbacks)
        is_flushed = streams.flush()
        # As in CPython: the collector runs twice. In cycles, a file's object is then closed before the raw file in it,
        # and so flushed; and finalizers are called while the program's names are still there.
        gc.collect()
        sys.stdout, sys.stderr = stdout, getattr(sys, "__stderr__", None)
        vars(builtins).update(names)
        sys.modules.pop("__main__", None)
        del namespace
        gc.collect()
        if not (streams.flush(stdout) and is_flushed):
            state, status = max(state, RAISED), status or 120
        _write_record(state, status, b"")
        if items and budget is not None and (is_unfit or empties_output or budget.is_spent(streams.output_sizes()[0])):
            _exit(LEAVE)


def _run_exit_handlers(callbacks: int) -> bool:
    """Run exit handlers as the interpreter does. Return True if the process is unfit for another program."""
    is_unfit = False
    try:
        if threading.active_count() > 1:
            is_unfit = True
            threading._shutdown()  # type: ignore[attr-defined]
        if atexit._ncallbacks() > callbacks:
            is_unfit = True
            atexit._run_exitfuncs()
    except BaseException as exc:
        _explain(exc)
        is_unfit = True
    return is_unfit


def _run_functions(source: str, items: list[bytes], order: tuple[Any, ...]) -> None:
    budget = Budget(order)
    module, namespace = _fresh_main("solution")
    sys.modules["solution"] = module
    stdout = streams.fill_input(b"", False)
    try:
        exec(compile(source, NAME, "exec", dont_inherit=True), namespace)
    except BaseException as exc:
        state, _ = _explain(exc)
        streams.flush(stdout)
        for _ in items:
            _write_record(max(state, RAISED), 1, b"")
        return
    logged = 0
    for number, item in enumerate(items):
        state, value = FINISHED, b""
        try:
            call = codec.decode(item)
            value = codec.encode(_resolve(module, call["fn"])(*call["args"], **call["kwargs"]), budget.out)
        except codec.Unencodable as exc:
            state = BAD_VALUE
            _explain(exc)
        except BaseException as exc:
            state, _ = _explain(exc)
            state = max(state, RAISED)  # a function that exits has returned nothing
        streams.flush(stdout)
        if len(value) > budget.out:
            state, value = BAD_VALUE, b""
        _write_record(state, 0 if state == FINISHED else 1, value)
        logged += len(value)
        # The caller reads at most twice the limit of one value from a process, to bound its own memory.
        if number + 1 < len(items) and budget.is_spent(max(logged, streams.output_sizes()[0])):
            _exit(LEAVE)


def _resolve(module: types.ModuleType, name: str) -> Callable[..., Any]:
    """Return the callable: a global, a dotted path, or a method of a Solution that is made for this call."""
    namespace = module.__dict__
    first, *rest = name.split(".")
    if first not in namespace and not rest and "Solution" in namespace:
        return getattr(namespace["Solution"](), first)  # type: ignore[no-any-return]
    if first not in namespace:
        raise NameError(f"the program defines no {name!r}")
    target = namespace[first]
    for part in rest:
        target = getattr(target() if isinstance(target, type) else target, part)
    return target  # type: ignore[no-any-return]


def _explain(exc: BaseException, errors: int = ERR) -> tuple[int, int]:
    """Return state and exit code of a program that an exception ended. Write the end of its traceback to `errors`."""
    if isinstance(exc, SystemExit):
        if exc.code is None or isinstance(exc.code, int):
            code = 0 if exc.code is None else exc.code & 0xFF
            return (FINISHED if code == 0 else RAISED), code
        text = str(exc.code) + "\n"
        write(errors, text.encode("utf-8", "backslashreplace")[-2000:])
        return RAISED, 1
    try:
        frames_of_program = exc.__traceback__
        while frames_of_program is not None and frames_of_program.tb_frame.f_code.co_filename in _HARNESS_FILES:
            frames_of_program = frames_of_program.tb_next
        if isinstance(exc, PermissionError) and exc.errno == errno.EPERM:
            exc.add_note(REFUSED)
        lines = traceback.format_exception(type(exc), exc, frames_of_program, limit=-_MAX_FRAMES, chain=False)
        write(errors, "".join(lines).encode("utf-8", "backslashreplace")[-4000:])
    except BaseException:  # no memory or no stack left, or a hostile __str__
        try:
            write(errors, type(exc).__name__.encode("utf-8", "replace") + b"\n")
        except BaseException:
            return RAISED, 1
    return (NO_MEMORY if isinstance(exc, MemoryError) else RAISED), 1


def _write_record(state: int, code: int, value: bytes) -> None:
    try:
        data = RECORD.pack(code & 0xFF, state, lseek(OUT, 0, 2), lseek(ERR, 0, 2), len(value))
        data += value
        written = write(LOG, data)
        while written < len(data):
            written += write(LOG, data[written:])
    except BaseException:  # the program closed our descriptors, so this process can write no record
        _exit(code)


_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp", "OPENSSL_CONF": "/dev/null"}


def run_native(program: bytes, items: list[bytes], scratch: str, wall: Callable[[], None]) -> None:
    """Write the program's file, scripts and its input, put up the last `wall`, and execute. Never returns.

    `program` is JSON: argv, more environment, scripts and the file's name; `items` are standard input and its bytes.
    """
    plan = json.loads(program)
    stdin, content = items
    for name, data in {plan["file"]: content, **{k: v.encode() for k, v in plan["scripts"].items()}}.items():
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.close(fd)
    streams.fill_input(stdin, False)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the new program would too
        signal.signal(ignored, signal.SIG_DFL)
    wall()
    try:
        os.closerange(streams.IN, 64)
        os.execve(plan["argv"][0], plan["argv"], _ENVIRONMENT | {"TMPDIR": scratch} | plan["environment"])
    except OSError as exc:
        sys.stderr.write(f"sandbox: {plan['argv'][0]}: {exc}\n")
        os._exit(127)
