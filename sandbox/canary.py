"""Check with a known program that a worker still runs programs rightly, should one have harmed it."""

from __future__ import annotations

import secrets

from verizero.sandbox import suites
from verizero.sandbox.process import Worker, WorkerDied, order
from verizero.sandbox.results import Limits
from verizero.sandbox.worker import codec, frames

CHECK_EVERY = 64
"""A worker is checked after this many processes, whatever their results."""
_LIMITS = Limits()
_SHOW = "import os, sys\ndef show(text):\n    print(text[::-1], os.listdir('.'))\n    print(text, file=sys.stderr)\n"
_PROGRAMS = {
    frames.STDIN: f"{_SHOW}show(sys.stdin.read())",
    frames.FUNCTION: f"{_SHOW}def f(text):\n    show(text)\n    return [text, len(text)]",
}
_SUITE_PROGRAM = b"def f(text): return text[::-1]"


def confirm(worker: Worker, was_new: bool, kind: int) -> None:
    """Check a worker after results of this `kind` that no right output proves; a worker that fails is not used again.

    Results of a worker that `was_new` count in either case: only their own program can have harmed it.
    Raises: WorkerDied if an earlier program may have harmed the worker; another worker must repeat the run.
    """
    if not check(worker, kind) and not was_new:
        raise WorkerDied(f"worker {worker.process.pid} runs a known program wrongly")


def check(worker: Worker, *kinds: int) -> bool:
    """Run a known program of each kind. Return True if all results are right, else mark the worker unfit."""
    try:
        worker.is_fit = all(_is_right(worker, kind) for kind in kinds)
    except WorkerDied:
        worker.is_fit = False
    worker.runs = 0
    return worker.is_fit


def _is_right(worker: Worker, kind: int) -> bool:
    """True if a run gives exactly the known output, errors and value. Raises: WorkerDied."""
    text = secrets.token_hex(8 + secrets.randbelow(24))
    if kind == frames.SUITE:
        return _runs_suite_rightly(worker, text)
    out, err, item, value = f"{text[::-1]} []\n".encode(), f"{text}\n".encode(), text.encode(), b""
    if kind == frames.FUNCTION:
        item, value = codec.encode({"fn": "f", "args": [text], "kwargs": {}}), codec.encode([text, len(text)])
    result = worker.execute(order(kind, _LIMITS), frames.pack_payload(_PROGRAMS[kind].encode(), [item]))
    record = frames.Record(0, frames.FINISHED, len(out), len(err), value)
    end = (result.exit.status, result.exit.why)
    return (end, result.out, result.err, result.records) == ((0, frames.ENDED), out, err, [record])


def _runs_suite_rightly(worker: Worker, text: str) -> bool:
    """True if a right test passes and a wrong one fails. Raises: WorkerDied."""
    tests = [{"source": f"assert f({text!r}) == {wanted!r}", "names": ["f"]} for wanted in (text[::-1], text)]
    payload = frames.pack_suite(_SUITE_PROGRAM, [suites.case(test).data for test in tests])
    result = worker.execute(order(frames.SUITE, _LIMITS, len(tests)), payload)
    if (result.exit.status, result.exit.why, result.out, result.err) != (0, frames.ENDED, b"..", b""):
        return False
    return [suites.status_of(record) for record in result.records] == ["passed", "wrong_answer"]
