"""Hold what a program did against what was expected. The expected values never leave this module's process."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any

from sandbox import compare
from sandbox.pool import Pool
from sandbox.process import ProcessResult, WorkerDied
from sandbox.results import Case, Limits, Mode, RunResult, Status, TestResult, require_tests
from sandbox.worker import codec, frames

_ERROR_CHARACTERS = 2000
ANYTHING = object()
"""Expected where nothing is compared."""
_KINDS: dict[str, int] = {"stdin": frames.STDIN, "function": frames.FUNCTION}


def cases(tests: Sequence[Mapping[str, Any]], mode: Mode) -> list[Case]:
    """The tests in their inner form.

    stdin: {"input": text, "output": text, or None for any}. function: {"fn": name, "args": list, "expected": value}
    and optionally "kwargs". Raises: ValueError naming the test and what is wrong with it.
    """
    if mode not in _KINDS:
        raise ValueError(f"mode must be 'stdin' or 'function', got {mode!r}")
    made = []
    for number, test in enumerate(tests):
        try:
            made.append(_stdin_case(test) if mode == "stdin" else _function_case(test))
        except (KeyError, TypeError, ValueError) as exc:
            wanted = '{"input", "output"}' if mode == "stdin" else '{"fn", "args", "expected"}'
            raise ValueError(f"test {number}: {type(exc).__name__} {exc}; a {mode} test is {wanted}") from exc
    return made


def _stdin_case(test: Mapping[str, Any]) -> Case:
    data, output = test["input"], test["output"]
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogateescape")
    if not isinstance(data, bytes) or not isinstance(output, (str, NoneType)):
        raise TypeError("input and output must be text")
    return Case(data, output)


def _function_case(test: Mapping[str, Any]) -> Case:
    name, args, kwargs = test["fn"], list(test["args"]), dict(test.get("kwargs", {}))
    if not isinstance(name, str) or isinstance(test["args"], (str, bytes)):
        raise TypeError("fn must be text and args a list")
    data = codec.encode({"fn": name, "args": args, "kwargs": kwargs})
    return Case(data, codec.decode(codec.encode(test["expected"])))


def run_tests(
    pool: Pool,
    program: str,
    tests: Sequence[Mapping[str, Any]],
    mode: Mode,
    limits: Limits,
    stop_on_failure: bool,
    compares: bool = True,
) -> RunResult:
    """The program's result on the tests; without `compares`, whatever it printed or returned will do.

    All tests share one process while they pass; one that fails in it runs again alone in a fresh one, and only that
    counts. Raises: ValueError on tests that cannot be run; IsolationError.
    """
    require_tests(tests, limits)
    todo = cases(tests, mode) if compares else [replace(c, expected=ANYTHING) for c in cases(tests, mode)]
    code = program.encode("utf-8", "surrogatepass") if isinstance(program, str) else program
    progress = _Progress(code, mode, todo, limits, stop_on_failure)
    try:
        return pool.use(progress.run)
    except WorkerDied as exc:
        failed = TestResult("sandbox_error", error=str(exc)[-_ERROR_CHARACTERS:])
        return RunResult((failed,) * len(todo), pool.isolation.level, len(todo))


class _Progress:
    """One program's tests, until each has a verdict; what is decided stays decided when a worker dies."""

    def __init__(self, program: bytes, mode: Mode, todo: list[Case], limits: Limits, stop: bool) -> None:
        self.program, self.mode, self.cases, self.limits, self.stop = program, mode, todo, limits, stop
        self.results: dict[int, TestResult] = {}
        self.alone: set[int] = set()
        self.kills: dict[int, int] = {}
        self.wall_s = 0.0

    def run(self, worker: Any) -> RunResult:
        """Run until decided. Raises: WorkerDied, after which it can go on with another worker."""
        while (batch := self._next()) and not (self.stop and self._failed()):
            begun = time.monotonic()
            order = frames.Order(
                _KINDS[self.mode], self.limits.wall_s, self.limits.cpu_s, self.limits.memory_mib,
                self.limits.output_kib, self.limits.disk_mib, self.limits.processes, len(batch),
            )  # fmt: skip
            payload = frames.pack_payload(self.program, [self.cases[i].data for i in batch])
            outcome = worker.execute(order, payload)
            self.wall_s += time.monotonic() - begun
            self._take(batch, outcome)
        count = len(self.cases) if not self.stop else _first_gap(self.results)
        return RunResult(tuple(self.results[i] for i in range(count)), worker.level, len(self.cases), self.wall_s)

    def _failed(self) -> bool:
        gap = _first_gap(self.results)
        return any(not self.results[i].passed for i in range(gap))

    def _next(self) -> list[int]:
        """Tests for the next process: one alone that has failed in company, else all that have not run."""
        open_tests = [i for i in range(len(self.cases)) if i not in self.results]
        if open_tests and open_tests[0] in self.alone:
            return open_tests[:1]
        fresh = [i for i in open_tests if i not in self.alone]
        return fresh or open_tests[:1]

    def _take(self, batch: list[int], outcome: ProcessResult) -> None:
        """Keep what is decided: every pass, and whatever happened to the first test of the process."""
        records = outcome.records
        peak = outcome.exit.peak_kib / 1024
        over = peak > self.limits.memory_mib
        out_at = err_at = 0
        for place, record in enumerate(records[: len(batch)]):
            out, err = outcome.out[out_at : record.out_end], outcome.err[err_at : record.err_end]
            out_at, err_at = record.out_end, record.err_end
            result = self._verdict(batch[place], record, out, err, peak)
            if over and (place == 0) and len(records) == 1:
                result = _with(result, "memory_limit", f"{_tail(err)}\nused {peak:.0f} MiB of {self.limits.memory_mib}")
            if (result.passed and not over) or (place == 0 and (not over or len(records) == 1)):
                self.results[batch[place]] = result
            else:
                self.alone.add(batch[place])
        if len(records) >= len(batch):
            return
        status = outcome.exit.status
        left = os.WIFEXITED(status) and os.WEXITSTATUS(status) == frames.LEAVE
        if records:
            if not left:
                self.alone.add(batch[len(records)])
            return
        self._died(batch[0], outcome, peak)

    def _died(self, number: int, outcome: ProcessResult, peak: float) -> None:
        """The process ended during its first test, so its end is that test's."""
        exit, limits = outcome.exit, self.limits
        text = _tail(outcome.err)
        status: Status = "runtime_error"
        stdout = outcome.out[: limits.output_kib << 10].decode("utf-8", "replace")
        if exit.status == -1:
            raise WorkerDied(f"no process: {os.strerror(exit.why)} {text}".strip())
        if exit.why == frames.CPU:
            status, text = "cpu_limit", f"{text}\nused {exit.cpu_s:.1f} CPU seconds of {limits.cpu_s}"
        elif exit.why == frames.WALL:
            status, text = (
                "timeout",
                f"{text}\nran {exit.wall_s:.1f} s of {limits.wall_s}, on {exit.cpu_s:.1f} CPU seconds",
            )
        elif exit.why == frames.DISK:
            text = f"{text}\nwrote more than {limits.disk_mib} MiB or 2048 files"
        elif exit.why == frames.PROCESSES:
            text = f"{text}\nhad more than {limits.processes} processes"
        elif exit.why == frames.MEMORY:
            status, text = "memory_limit", f"{text}\nused more than {limits.memory_mib} MiB"
        elif len(outcome.out) > limits.output_kib << 10:
            status, text = "output_limit", f"{text}\nprinted more than {limits.output_kib} KiB"
        elif exit.why == frames.CANCELLED:
            raise WorkerDied("cancelled")
        elif os.WIFSIGNALED(exit.status):
            killer = os.WTERMSIG(exit.status)
            if killer == signal.SIGKILL and self.kills.setdefault(number, 0) < 2:
                self.kills[number] += 1  # not by us: the kernel out of memory, or someone on this machine; once more
                return
            over = killer == signal.SIGKILL or peak > limits.memory_mib * 0.9
            status = "memory_limit" if over and peak > limits.memory_mib * 0.5 else "runtime_error"
            text = f"{text}\nkilled by {signal.Signals(killer).name}".strip()
        elif os.WEXITSTATUS(exit.status) == 0 and self.mode == "stdin" and peak <= limits.memory_mib:
            record = frames.Record(0, frames.FINISHED, exit.cpu_s, exit.wall_s, len(outcome.out), len(outcome.err), b"")
            self.results[number] = self._verdict(number, record, outcome.out, outcome.err, peak)
            return
        else:
            status = "memory_limit" if peak > limits.memory_mib else status
            text = f"{text}\nexit code {os.WEXITSTATUS(exit.status)} before a result".strip()
        self.results[number] = TestResult(status, stdout, text[-_ERROR_CHARACTERS:], exit.cpu_s, exit.wall_s, peak)

    def _verdict(self, number: int, record: frames.Record, out: bytes, err: bytes, peak: float) -> TestResult:
        cap = self.limits.output_kib << 10
        status, error, value = self._decide(number, record, out)
        error = "" if status == "passed" else f"{_tail(err)}\n{error}".strip()
        return TestResult(
            status, out[:cap].decode("utf-8", "replace"), error, _seconds(record.cpu_s), _seconds(record.wall_s), peak,
            value,
        )  # fmt: skip

    def _decide(self, number: int, record: frames.Record, out: bytes) -> tuple[Status, str, Any]:
        expected = self.cases[number].expected
        anything = expected is ANYTHING or (self.mode == "stdin" and expected is None)
        if len(out) > self.limits.output_kib << 10:
            return "output_limit", "", None
        if record.state == frames.NO_MEMORY:
            return "memory_limit", "", None
        if record.state == frames.RAISED or (record.code and record.state == frames.FINISHED):
            return "runtime_error", "", None
        if record.state == frames.BAD_VALUE:
            return "bad_output", "", None
        if self.mode == "stdin":
            return self._decide_output(out, None if anything else expected)
        try:
            value = codec.decode(record.value)
        except ValueError as exc:
            return "bad_output", str(exc), None
        return ("passed" if anything or compare.values_equal(value, expected) else "wrong_answer"), "", value

    def _decide_output(self, out: bytes, expected: str | None) -> tuple[Status, str, Any]:
        try:
            text = out.decode("utf-8")
        except UnicodeDecodeError as exc:
            return "bad_output", f"output is not UTF-8: {exc}", None
        if expected is None:  # nothing to hold it against: it was run for its output
            return "passed", "", None
        return ("passed" if compare.outputs_equal(text, expected) else "wrong_answer"), "", None


def _first_gap(results: Mapping[int, TestResult]) -> int:
    return next(i for i in range(len(results) + 1) if i not in results)


def _seconds(claimed: float) -> float:
    return claimed if math.isfinite(claimed) and claimed >= 0 else 0.0


def _tail(err: bytes) -> str:
    return err[-4 * _ERROR_CHARACTERS :].decode("utf-8", "replace")[-_ERROR_CHARACTERS:].strip()


def _with(result: TestResult, status: Status, error: str) -> TestResult:
    return TestResult(status, result.stdout, error, result.cpu_s, result.wall_s, result.peak_mib, result.value)
