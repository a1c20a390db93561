"""Suites: tests in Python that call a program, each run in a process that the program cannot reach.

The worker makes both processes. The one with the tests says how each ended; here that becomes a result, with how both
processes ended as the worker saw it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from verizero.sandbox.process import ERROR_CHARACTERS, ProcessResult, signal_name, tail
from verizero.sandbox.results import Case, Limits, Status, TestResult
from verizero.sandbox.worker import codec, frames

FORM = '{"source", "names", "function"?, "records"?}'
_STATUSES: dict[str, Status] = {
    "passed": "passed", "idle": "passed", "failed": "wrong_answer", "raised": "runtime_error", "broken": "bad_test",
    "fault": "bad_output", "memory": "memory_limit",
}  # fmt: skip
_GONE = ("gone", "gone_idle")


def case(test: Mapping[str, Any]) -> Case:
    """Return a test as the bytes for its process: source, the program's names in it, the function to call after it.

    `records`: names of classes that both the source and the program have, whose instances travel by their attributes.
    """
    source, names, function = test["source"], list(test["names"]), test.get("function")
    records = list(test.get("records", ()))
    if not isinstance(source, str) or not all(isinstance(n, str) for n in (*names, *records)):
        raise TypeError("source must be text, names and records lists of texts")
    if function is not None and not isinstance(function, str):
        raise TypeError("function must be text")
    parts = {"source": source, "names": names, "function": function, "records": records}
    return Case(json.dumps(parts).encode(), None)


def status_of(record: frames.Record) -> Status:
    """Return the status of a test by its record alone."""
    return _STATUSES.get(_said(record)[0], "bad_test")


def _said(record: frames.Record) -> tuple[str, str]:
    """Return how a test says that it ended, and why."""
    try:
        ending = json.loads(record.value)
        return str(ending["end"]), str(ending["why"])
    except (ValueError, TypeError, KeyError):
        return "broken", "the test has written a record of its own"


def result_of(record: frames.Record, ended: ProcessResult, limits: Limits) -> TestResult | None:
    """Return a test's result; None if it was killed by nobody knows whom. Raises: WorkerDied without a process."""
    end, why = _said(record)
    if end not in _GONE:
        return _result(status_of(record), why, ended, calls=end != "idle")
    program = ended.of_program()
    if end == "gone_idle" and program.exit.why == frames.WALL:
        return _result("bad_test", f"the test itself takes more than {limits.wall_s} s", ended)
    if reached := program.limit_reached(limits):
        return _result(reached[0], reached[1], ended)
    if program.exit.why == frames.LEFT_OVER:
        return _result("runtime_error", "the program closed its end of the link", ended)
    if not os.WIFSIGNALED(program.exit.status):
        code = os.waitstatus_to_exitcode(program.exit.status)
        over = program.exit.peak_kib > limits.memory_mib << 10
        return _result("memory_limit" if over else "runtime_error", f"the program ended, exit code {code}", ended)
    if program.was_killed():
        return None
    return _result("runtime_error", f"the program was ended by {signal_name(os.WTERMSIG(program.exit.status))}", ended)


def result_without_record(ended: ProcessResult, limits: Limits, has_called: bool) -> TestResult | None:
    """Return the result of a test whose own process was ended; None if it was killed by nobody knows whom.

    Once the test has called the program, it has only done what the program's values made it do. Raises: WorkerDied.
    """
    reached = ended.limit_reached(limits)
    if reached is None and ended.was_killed():
        return None
    status, reason = reached or ("runtime_error", f"the tests ended with {ended.exit.status}: {tail(ended.err)}")
    return _result(status if has_called else "bad_test", f"the test itself {reason}", ended)


def _result(status: Status, why: str, ended: ProcessResult, calls: bool = True) -> TestResult:
    """Return a result. Its value is False for a test that calls nothing of the program."""
    program = ended.of_program().exit
    cpu_s, peak_mib = ended.exit.cpu_s + program.cpu_s, program.peak_kib / 1024
    error = "" if status == "passed" else why[-ERROR_CHARACTERS:]
    return TestResult(status, "", error, cpu_s, ended.exit.wall_s, peak_mib, codec.encode(calls))
