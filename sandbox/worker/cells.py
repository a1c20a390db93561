"""The child that runs the calls of one session: cells of Python one after another, or one line of a shell.

As in `harness`, nothing here is trusted once a program runs. The child gets its order with its own descriptors. It says
that a call has ended on `LINK`, with the number that came with the call; the keeper then halts it and reads its output.
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

from . import harness, jail, kernel, landlock, selftest, streams
from .frames import FINISHED, PID, RAISED, SETUP_FAILED

CELLS, LINE, TEST = range(3)
"""Orders: an interpreter for cells, a shell line, the self-test."""
LINK, STATE = 3, 4
"""Descriptors of a child: for orders and ends, and for the folder and the environment that a line leaves."""
END = struct.Struct("<8sBBQQQQ")
"""The end of a call: its number, state, exit code, and where output and errors of it begin and end.

A program can forge all of it, and so only cut its own output. What it writes before it has read its order, or after it
has said that it is done, is nobody's.
"""
MOST_STATE = 48 << 10
_PACKET = 200 << 10
_NOT_KEPT = (b"_", b"SHLVL")
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp", "OPENSSL_CONF": "/dev/null"}
_SHELL = """trap '{ printf "%s\\0" "$PWD"; /usr/bin/env -0; } >&4' EXIT
eval "$1" """


def begin(
    orders: int, refused: OSError | None, cell: jail.Jail, before: dict[str, bool], host_file: str,
    wall: Callable[[], None],
) -> None:  # fmt: skip
    """Wait for an order, put up the walls that are the session's own, and do it. Never returns."""
    packet, files = kernel.receive(orders, _PACKET)
    if not packet:
        _exit(0)
    try:
        if refused is not None:
            raise refused
        kind, scratch, state, seed, text = marshal.loads(packet)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        if len(files) > 4:
            landlock.restrict(files[-1])
        os.chdir(scratch)
        if cell.tools:
            os.setpgid(0, 0)
        _place(files)
        if kind == TEST:
            os.closerange(STATE + 1, streams.LAST)
            selftest.run(cell, before, 64, host_file, wall, STATE)
        if kind == LINE:
            folder, environment = _read_state(state)
            _line(text, folder, environment | {b"TMPDIR": os.fsencode(scratch)}, wall)
        wall()
        os.closerange(STATE + 1, streams.LAST)
    except BaseException as exc:
        os.write(2, f"sandbox: {type(exc).__name__}: {exc}\n".encode())
        os.write(orders, PID.pack(getattr(exc, "errno", None) or errno.EIO))
        _exit(SETUP_FAILED)
    os.environ["TMPDIR"] = scratch
    _interpret(seed)


def _place(files: list[int]) -> None:
    """Put the session's descriptors into their places; all of them are above these."""
    out, err, link, state, *_ = files
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, place in ((nothing, 0), (out, 1), (err, 2), (link, LINK), (state, STATE)):
        os.dup2(fd, place)


def _read_state(state: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the folder and the environment that the last program left; empty at first."""
    folder, *lines = state.rstrip(b"\0").split(b"\0")
    pairs = (line.partition(b"=") for line in lines)
    return folder, {name: value for name, equal, value in pairs if name and equal and name not in _NOT_KEPT}


def _line(text: str, folder: bytes, environment: dict[bytes, bytes], wall: Callable[[], None]) -> None:
    """Execute a line of the shell, which leaves its folder and environment in STATE. Never returns."""
    with contextlib.suppress(OSError):  # it may be gone
        os.chdir(folder or b".")
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the new program would too
        signal.signal(ignored, signal.SIG_DFL)
    wall()
    os.set_inheritable(STATE, True)
    os.close(LINK)
    os.closerange(STATE + 1, streams.LAST)
    fresh = {os.fsencode(k): os.fsencode(v) for k, v in _ENVIRONMENT.items()}
    try:
        os.execve(
            "/bin/bash", [b"bash", b"--norc", b"-c", _SHELL.encode(), b"bash", text.encode()], fresh | environment
        )
    except OSError as exc:
        sys.stderr.write(f"sandbox: /bin/bash: {exc}\n")
        _exit(127)


def _interpret(seed: int) -> None:
    """Run cells in one namespace as they come. Never returns."""
    gc.enable()
    random.seed(seed)
    _, space = harness._fresh_main("__main__")
    number = 0
    while True:
        packet = os.read(LINK, _PACKET)
        if not packet:
            _exit(0)
        token, source = marshal.loads(packet)
        begins, number = _ends(), number + 1
        state, code = _run_cell(source, f"cell-{number}.py", space)
        os.write(LINK, END.pack(token, state, code, *begins, *_ends()))


def _run_cell(source: str, name: str, space: dict[str, Any]) -> tuple[int, int]:
    """Run one cell; return its state and exit code."""
    state, code = FINISHED, 0
    stdout: Any = sys.stdout
    linecache.cache[name] = (lambda: source,)
    try:
        compiled: types.CodeType = compile(source, name, "exec", dont_inherit=True)
        exec(compiled, space)
    except BaseException as exc:
        state, code = harness._explain(exc, 2)
    if not streams.flush(stdout):
        state, code = max(state, RAISED), code or 120
        _drop(stdout)
    return state, code


def _drop(stdout: Any) -> None:
    """Empty the buffers that did not fit into the output: the next cell's would begin with them."""
    with contextlib.suppress(OSError):
        kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        streams.flush(stdout)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)


def _ends() -> tuple[int, int]:
    try:
        return os.lseek(1, 0, os.SEEK_END), os.lseek(2, 0, os.SEEK_END)
    except OSError:  # the program has closed its streams
        return 1 << 60, 1 << 60
