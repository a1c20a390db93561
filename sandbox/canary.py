"""A known program that shows whether a worker still runs programs as it should: the wall behind all other walls."""

from __future__ import annotations

import secrets

from verizero.sandbox.process import Worker, WorkerDied, order
from verizero.sandbox.results import Limits
from verizero.sandbox.worker import codec, frames

OFTEN = 64
"""Processes of a worker after which it is checked, whatever their results."""
_LIMITS = Limits()
_SHOW = "import os, sys\ndef show(text):\n    print(text[::-1], os.listdir('.'))\n    print(text, file=sys.stderr)\n"
_PROGRAMS = {
    frames.STDIN: f"{_SHOW}show(sys.stdin.read())",
    frames.FUNCTION: f"{_SHOW}def f(text):\n    show(text)\n    return [text, len(text)]",
}


def confirm(worker: Worker, was_fresh: bool, kind: int) -> None:
    """Check a worker after results of this kind that nothing else proves, and retire it where it fails.

    What came from a worker that `was_fresh` before is its program's own doing and stays in either case.
    Raises: WorkerDied where an earlier program may have spoilt the results, so that another worker must repeat them.
    """
    if not check(worker, kind) and not was_fresh:
        raise WorkerDied(f"worker {worker.process.pid} runs a known program wrongly")


def check(worker: Worker, *kinds: int) -> bool:
    """Run a known program of each kind; return True if all that comes back is right, else mark the worker unfit."""
    try:
        worker.is_fit = all(_is_right(worker, kind) for kind in kinds)
    except WorkerDied:
        worker.is_fit = False
    worker.runs = 0
    return worker.is_fit


def _is_right(worker: Worker, kind: int) -> bool:
    """True if a run has its output, its errors and its value, and nothing else. Raises: WorkerDied."""
    text = secrets.token_hex(8 + secrets.randbelow(24))
    out, err, item, value = f"{text[::-1]} []\n".encode(), f"{text}\n".encode(), text.encode(), b""
    if kind == frames.FUNCTION:
        item, value = codec.encode({"fn": "f", "args": [text], "kwargs": {}}), codec.encode([text, len(text)])
    ended = worker.execute(order(kind, _LIMITS), frames.pack_payload(_PROGRAMS[kind].encode(), [item]))
    record = frames.Record(0, frames.FINISHED, len(out), len(err), value)
    end = (ended.exit.status, ended.exit.why)
    return (end, ended.out, ended.err, ended.records) == ((0, frames.ENDED), out, err, [record])
