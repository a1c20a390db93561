"""Run a program on its tests and compare the results. Expected values never leave the caller's process."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any

from verizero.sandbox import compare, suites
from verizero.sandbox.pool import Pool, confirm
from verizero.sandbox.process import ERROR_CHARACTERS, ProcessResult, Worker, WorkerDied, order, signal_name, tail
from verizero.sandbox.results import (
    NOT_RUN,
    WITH_NAMESPACES,
    Case,
    Limits,
    Mode,
    RunResult,
    Status,
    TestResult,
    Trial,
    is_too_slow,
    limits_for,
    require_tests,
)
from verizero.sandbox.worker import codec, frames

_MAX_SHARED_BYTES = 8 << 20
_MAX_KILLS = 2
"""Kills of one test's process by an unknown hand after which it is tried again."""
_KINDS: dict[str, int] = {"stdin": frames.STDIN, "function": frames.FUNCTION, "suite": frames.SUITE}
_FORMS = {"stdin": '{"input", "output"}', "function": '{"fn", "args", "expected"}', "suite": suites.FORM}


def cases(tests: Sequence[Mapping[str, Any]], mode: Mode) -> list[Case]:
    """Return the tests as cases: the bytes for the child, and the expected value.

    stdin: {"input": text, "output": text, or None for any}. function: {"fn": name, "args": list, "expected": value}
    and optionally "kwargs". suite: `suites.case`. Raises: ValueError naming the test and its fault.
    """
    if mode not in _KINDS:
        raise ValueError(f"mode must be 'stdin', 'function' or 'suite', got {mode!r}")
    make = {"stdin": _stdin_case, "function": _function_case, "suite": suites.case}[mode]
    new_cases = []
    for number, test in enumerate(tests):
        try:
            new_cases.append(make(test))
        except (KeyError, TypeError, ValueError) as exc:
            raise ValueError(f"test {number}: {type(exc).__name__} {exc}; a {mode} test is {_FORMS[mode]}") from exc
    return new_cases


def _stdin_case(test: Mapping[str, Any]) -> Case:
    data, output = test["input"], test["output"]
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogateescape")
    if not isinstance(data, bytes) or not isinstance(output, (str, NoneType)):
        raise TypeError("input and output must be text")
    return Case(data, output, len((output or "").encode("utf-8", "surrogatepass")))


def _function_case(test: Mapping[str, Any]) -> Case:
    name, args, kwargs = test["fn"], list(test["args"]), dict(test.get("kwargs", {}))
    if not isinstance(name, str) or isinstance(test["args"], (str, bytes)):
        raise TypeError("fn must be text and args a list")
    data = codec.encode({"fn": name, "args": args, "kwargs": kwargs})
    expected = codec.encode(test["expected"])
    return Case(data, codec.read(expected, of_program=False), len(expected))


def run_tests(pool: Pool, trial: Trial) -> RunResult:
    """Return the result of a program in Python on its tests.

    All tests share one process while they pass. A test that fails there runs again alone in a fresh process, and only
    the second run counts. Raises: ValueError on tests that cannot be run; IsolationError.
    """
    require_tests(trial.tests, trial.limits)
    all_cases = cases(trial.tests, trial.mode)
    code = trial.program.encode("utf-8", "surrogatepass") if isinstance(trial.program, str) else trial.program
    limits = limits_for(all_cases, trial.limits)
    progress = _Progress(code, trial.mode, all_cases, limits, trial.stop_on_failure)
    try:
        return pool.use(progress.run)
    except WorkerDied as exc:
        return RunResult.failed(str(exc)[-ERROR_CHARACTERS:], len(all_cases), pool.isolation.level)


class _Progress:
    """The tests of a program and their results so far. Passed tests keep their result when a worker dies."""

    def __init__(self, program: bytes, mode: Mode, all_cases: list[Case], limits: Limits, stop: bool) -> None:
        self.program, self.mode, self.cases, self.limits, self.stop = program, mode, all_cases, limits, stop
        self.results: dict[int, TestResult] = {}
        self.to_run_alone: set[int] = set()
        """Tests that failed in a shared process, and run again in a process of their own."""
        self.without_record: set[int] = set()
        """Tests whose process wrote no record: the output alone decided."""
        self.kills: dict[int, int] = {}
        """Test -> how often its process was killed, at no limit of its own."""
        self.wall_s = 0.0
        self.level = 0

    def run(self, worker: Worker) -> RunResult:
        """Run the tests that have no result. Raises: WorkerDied; another worker can then run the rest.

        A right output proves itself. Other results count only after the worker has passed a check (`confirm`).
        """
        was_new, self.level = worker.runs == 0, worker.level
        try:
            self._run_rest(worker)
            if not all(map(self._is_proven, self.results)):
                confirm(worker, was_new, frames.STDIN if self.mode == "stdin" else frames.FUNCTION)
        except WorkerDied:
            self.results = {number: result for number, result in self.results.items() if self._is_proven(number)}
            raise
        count = len(self.cases) if not self.stop else _first_gap(self.results)
        return RunResult(tuple(self.results[i] for i in range(count)), worker.level, len(self.cases), self.wall_s)

    def _is_proven(self, number: int) -> bool:
        """True if the test passed because its output equals the expected one: a harmed worker cannot fake that."""
        expected, result = self.cases[number].expected, self.results[number]
        return result.passed and expected is not None and number not in self.without_record

    def _run_rest(self, worker: Worker) -> None:
        while (batch := self._next()) and not (self.stop and self._has_failure()):
            if is_too_slow(self.results.values()):
                self.results = {i: TestResult("timeout", error=NOT_RUN) for i in range(len(self.cases))} | self.results
                return
            start = time.monotonic()
            pack = frames.pack_suite if self.mode == "suite" else frames.pack_payload
            payload = pack(self.program, [self.cases[i].data for i in batch])
            ended = worker.execute(order(_KINDS[self.mode], self.limits, len(batch)), payload)
            self.wall_s += time.monotonic() - start
            self._record_results(batch, ended)

    def _has_failure(self) -> bool:
        """True if a test has failed and all tests before it have a result."""
        return any(not self.results[i].passed for i in range(_first_gap(self.results)))

    def _next(self) -> list[int]:
        """Return the tests for the next process: one that failed in a shared process, or those that have not run.

        Their inputs together have no more than `_MAX_SHARED_BYTES`: each process has all of its inputs in memory.
        """
        open_tests = [i for i in range(len(self.cases)) if i not in self.results]
        if open_tests and open_tests[0] in self.to_run_alone:
            return open_tests[:1]
        not_run = [i for i in open_tests if i not in self.to_run_alone]
        ends = itertools.accumulate(len(self.cases[i].data) for i in not_run)
        return [i for i, end in zip(not_run, ends, strict=True) if end <= _MAX_SHARED_BYTES] or open_tests[:1]

    def _record_results(self, batch: list[int], ended: ProcessResult) -> None:
        """Record the results that a process decides: all passes, and any result of its first test."""
        records = ended.records
        peak_mib = ended.of_program().exit.peak_kib / 1024
        is_over_memory = peak_mib > self.limits.memory_mib
        out_at = err_at = 0
        for index, record in enumerate(records[: len(batch)]):
            out, err = ended.out[out_at : record.out_end], ended.err[err_at : record.err_end]
            out_at, err_at = record.out_end, record.err_end
            if self.mode == "suite":
                result = suites.result_of(record, ended, self.limits)
                if result is None and not self._may_run_again(batch[index]):
                    result = TestResult("runtime_error", error="the program was killed by SIGKILL")
            else:
                result = self._verdict(batch[index], record, out, err, ended.exit)
            if result is None:
                continue
            # The peak is of the whole process: it is the test's own only where no other has run in it.
            if is_over_memory and index == 0 and len(records) == 1:
                error = f"{tail(err)}\nused {peak_mib:.0f} MiB of {self.limits.memory_mib}"
                result = replace(result, status="memory_limit", error=error)
            if (result.passed and not is_over_memory) or (index == 0 and (not is_over_memory or len(records) == 1)):
                self.results[batch[index]] = result
            else:
                self.to_run_alone.add(batch[index])
        if len(records) >= len(batch):
            return
        if not records and self.mode == "suite":
            result = suites.result_without_record(ended, self.limits, bool(ended.out))
            if result is not None or not self._may_run_again(batch[0]):
                self.results[batch[0]] = result or TestResult("runtime_error", error="killed by SIGKILL")
        elif not records:
            self._record_end(batch[0], ended, peak_mib)
        elif not (os.WIFEXITED(status := ended.exit.status) and os.WEXITSTATUS(status) == frames.LEAVE):
            self.to_run_alone.add(batch[len(records)])

    def _record_end(self, number: int, ended: ProcessResult, peak_mib: float) -> None:
        """Record how a process without records ended, as the result of its first test."""
        exit, limits = ended.exit, self.limits
        status: Status = "runtime_error"
        if reached := ended.limit_reached(limits):
            status, reason = reached
        elif os.WIFSIGNALED(exit.status):
            killer = os.WTERMSIG(exit.status)
            if killer == signal.SIGKILL and self._may_run_again(number):
                return
            is_over_memory = killer == signal.SIGKILL or peak_mib > limits.memory_mib * 0.9
            status = "memory_limit" if is_over_memory and peak_mib > limits.memory_mib * 0.5 else "runtime_error"
            reason = f"killed by {signal_name(killer)}"
        elif os.WEXITSTATUS(exit.status) == 0 and self.mode == "stdin" and peak_mib <= limits.memory_mib:
            # A program may end by os._exit(0), which leaves no record: its output decides.
            record = frames.Record(0, frames.FINISHED, len(ended.out), len(ended.err), b"")
            self.results[number] = self._verdict(number, record, ended.out, ended.err, exit)
            self.without_record.add(number)
            return
        else:
            status = "memory_limit" if peak_mib > limits.memory_mib else status
            reason = f"exit code {os.WEXITSTATUS(exit.status)} before a result"
        error = f"{tail(ended.err)}\n{reason}".strip()[-ERROR_CHARACTERS:]
        stdout = ended.out[: limits.output_kib << 10].decode("utf-8", "replace")
        self.results[number] = TestResult(status, stdout, error, exit.cpu_s, exit.wall_s, peak_mib)

    def _may_run_again(self, number: int) -> bool:
        """True if a test whose process was killed runs again. Raises: WorkerDied if the killer was not the program.

        The kernel may have killed it, out of memory, or a user of this machine. With namespaces a program cannot kill
        itself, since the first process of a namespace gets no signal from inside. Without, it can.
        """
        self.kills[number] = self.kills.get(number, 0) + 1
        if self.kills[number] > _MAX_KILLS and self.level >= WITH_NAMESPACES:
            raise WorkerDied(f"test {number + 1} was killed from outside {self.kills[number]} times")
        return self.kills[number] <= _MAX_KILLS

    def _verdict(self, number: int, record: frames.Record, out: bytes, err: bytes, exit: frames.Exit) -> TestResult:
        max_output = self.limits.output_kib << 10
        status, error = self._decide(number, record, out)
        error = "" if status == "passed" else f"{tail(err)}\n{error}".strip()
        stdout = out[:max_output].decode("utf-8", "replace")
        encoded = record.value if self.mode == "function" and status in ("passed", "wrong_answer") else b""
        peak_mib = exit.peak_kib / 1024
        return TestResult(status, stdout, error, exit.cpu_s, exit.wall_s, peak_mib, encoded)

    def _decide(self, number: int, record: frames.Record, out: bytes) -> tuple[Status, str]:
        """Return the status of a test that has a record, with an error text.

        A record may be forged: a value's size is checked before it is decoded, and nothing here may raise.
        """
        if len(out) > self.limits.output_kib << 10:
            return "output_limit", ""
        if record.state == frames.NO_MEMORY:
            return "memory_limit", ""
        if record.state == frames.RAISED or (record.code and record.state == frames.FINISHED):
            return "runtime_error", ""
        if record.state == frames.BAD_VALUE:
            return "bad_output", ""
        if len(record.value) > self.limits.output_kib << 10:
            return "bad_output", f"a value of more than {self.limits.output_kib} KiB"
        try:
            got = out.decode("utf-8") if self.mode == "stdin" else codec.read(record.value)
        except UnicodeDecodeError as exc:
            return "bad_output", f"output is not UTF-8: {exc}"
        except ValueError as exc:
            return "bad_output", str(exc)
        expected = self.cases[number].expected
        try:
            if self.mode == "stdin":
                right = expected is None or compare.outputs_equal(got, expected)
            else:
                right = compare.values_equal(got, expected)
        except (ValueError, ArithmeticError, TypeError, RecursionError) as exc:
            return "wrong_answer", f"cannot be compared to the expected value: {type(exc).__name__}"
        return "passed" if right else "wrong_answer", ""


def _first_gap(results: Mapping[int, TestResult]) -> int:
    """Return the number of the first test that has no result."""
    return next(i for i in range(len(results) + 1) if i not in results)
