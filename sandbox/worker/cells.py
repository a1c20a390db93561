"""The child that runs calls of one session: Python cells one after another, or one line of a shell.

As in `harness`, nothing here is trusted once a program runs. The child gets its order together with its descriptors.
When a call has ended, it sends the call's token on `LINK`; the keeper then halts it and reads its output.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import linecache
import marshal
import os
import random
import signal
import struct
import sys
import types
from collections.abc import Callable
from posix import _exit
from typing import Any

from . import harness, kernel, landlock, selftest, streams, walls
from .frames import FINISHED, PID, RAISED, SETUP_FAILED

CELLS, LINE, TEST = range(3)
"""Kinds of orders: an interpreter for cells, a shell line, the self-test."""
LINK, STATE = 3, 4
"""Descriptors of a child: cells and their ends pass on LINK; a line writes its folder and environment to STATE."""
CALL_END = struct.Struct("<8sBBQQQQ")
"""The end of a call: its token, state, exit code, and where its output and errors begin and end.

A program can forge all of it, but so it only cuts its own output. What it writes before it has read its order, or after
it has sent this, belongs to no call.
"""
MAX_STATE = 48 << 10
_PACKET = 200 << 10
_DROPPED_VARIABLES = (b"_", b"SHLVL")
_SHELL = """trap '{ printf "%s\\0" "$PWD"; /usr/bin/env -0; } >&4' EXIT
eval "$1" """


def begin(
    orders: int, refused: OSError | None, jail: walls.Jail, works_without: dict[str, bool], host_file: str,
    wall: Callable[[], None],
) -> None:  # fmt: skip
    """Wait for an order, put up the walls of its session, and carry it out. Never returns."""
    packet, files = kernel.receive(orders, _PACKET)
    if not packet:
        _exit(0)
    try:
        if refused is not None:
            raise refused
        kind, scratch, state, text = marshal.loads(packet)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        if len(files) > 4:
            landlock.restrict(files[-1])
        os.chdir(scratch)
        if jail.tools:
            os.setpgid(0, 0)
        out, err, link, state_file, *_ = files
        null = os.open(os.devnull, os.O_RDONLY)
        # The fixed numbers are below all that were received.
        for fd, number in ((null, 0), (out, 1), (err, 2), (link, LINK), (state_file, STATE)):
            os.dup2(fd, number)
        if kind == TEST:
            os.closerange(STATE + 1, streams.LAST)
            selftest.run(jail, works_without, 64, host_file, wall, STATE)
        if kind == LINE:
            folder, environment = _read_state(state)
            _execute_line(text, folder, environment | {b"TMPDIR": os.fsencode(scratch)}, wall)
        wall()
        os.closerange(STATE + 1, streams.LAST)
    except BaseException as exc:
        os.write(2, f"sandbox: {type(exc).__name__}: {exc}\n".encode())
        os.write(orders, PID.pack(getattr(exc, "errno", None) or errno.EIO))
        _exit(SETUP_FAILED)
    os.environ["TMPDIR"] = scratch
    _run_cells()


def _read_state(state: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the folder and the environment after the last shell line; empty before the first."""
    folder, *lines = state.rstrip(b"\0").split(b"\0")
    pairs = (line.partition(b"=") for line in lines)
    return folder, {name: value for name, equal, value in pairs if name and equal and name not in _DROPPED_VARIABLES}


def _execute_line(text: str, folder: bytes, environment: dict[bytes, bytes], wall: Callable[[], None]) -> None:
    """Execute a line of the shell, which leaves its folder and environment in STATE. Never returns."""
    with contextlib.suppress(OSError):  # it may be gone
        os.chdir(folder or b".")
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the new program would too
        signal.signal(ignored, signal.SIG_DFL)
    wall()
    os.set_inheritable(STATE, True)
    os.close(LINK)
    os.closerange(STATE + 1, streams.LAST)
    defaults = {os.fsencode(k): os.fsencode(v) for k, v in harness._ENVIRONMENT.items()}
    try:
        os.execve(
            "/bin/bash", [b"bash", b"--norc", b"-c", _SHELL.encode(), b"bash", text.encode()], defaults | environment
        )
    except OSError as exc:
        sys.stderr.write(f"sandbox: /bin/bash: {exc}\n")
        _exit(127)


def _run_cells() -> None:
    """Run the cells that arrive on LINK, all in one namespace. Never returns."""
    gc.enable()
    random.seed(0)
    _, namespace = harness._fresh_main("__main__")
    number = 0
    while True:
        packet = os.read(LINK, _PACKET)
        if not packet:
            _exit(0)
        token, source = marshal.loads(packet)
        begins, number = _output_sizes(), number + 1
        state, code = _run_cell(source, f"cell-{number}.py", namespace)
        os.write(LINK, CALL_END.pack(token, state, code, *begins, *_output_sizes()))


def _run_cell(source: str, name: str, namespace: dict[str, Any]) -> tuple[int, int]:
    """Run one cell; return its state and exit code."""
    state, code = FINISHED, 0
    stdout: Any = sys.stdout
    linecache.cache[name] = (lambda: source,)
    try:
        compiled: types.CodeType = compile(source, name, "exec", dont_inherit=True)
        exec(compiled, namespace)
    except BaseException as exc:
        state, code = harness._explain(exc, 2)
    if not streams.flush(stdout):
        state, code = max(state, RAISED), code or 120
        with contextlib.suppress(OSError):  # the output is full: else the next cell would print what is in its buffers
            output, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            streams.flush(stdout)
            os.dup2(output, 1)
            os.close(output)
            os.close(null)
    return state, code


def _output_sizes() -> tuple[int, int]:
    try:
        return os.lseek(1, 0, os.SEEK_END), os.lseek(2, 0, os.SEEK_END)
    except OSError:  # the program has closed its streams
        return 1 << 60, 1 << 60
