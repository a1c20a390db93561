"""Custom checkers: programs that decide if an output is right, run in a sandbox of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sandbox.pool import Pool
from sandbox.results import Limits, Mode, RunResult, TestResult
from sandbox.trial import run_tests


def run_with_checker(
    pool: Pool, program: str, tests: Sequence[Mapping[str, Any]], mode: Mode, limits: Limits, checker: str
) -> RunResult:
    """Return the program's result where `checker` decides: a program that defines check(input, output, expected).

    In function mode `input` is the list of arguments and `output` the returned value. The checker runs in a process of
    its own, after the program's process is dead. A checker that fails, or returns neither True nor False, gives
    "sandbox_error", which is no fault of the program. Raises: ValueError; IsolationError.
    """
    wanted = "output" if mode == "stdin" else "expected"
    for number, test in enumerate(tests):
        if wanted not in test:
            raise ValueError(f"test {number}: no {wanted!r} to hand to the checker; use None where it needs none")
    ran = run_tests(pool, program, [dict(t) | {wanted: None} for t in tests], mode, limits, False, compares=False)
    calls, places = [], []
    for place, (test, result) in enumerate(zip(tests, ran.tests, strict=True)):
        if result.passed:
            asked, got = (test["input"], result.stdout) if mode == "stdin" else (test["args"], result.value)
            calls.append({"fn": "check", "args": [asked, got, test[wanted]], "expected": True})
            places.append(place)
    decided = list(ran.tests)
    if calls:
        checked = run_tests(pool, checker, calls, "function", limits, False)
        for place, verdict in zip(places, checked.tests, strict=True):
            decided[place] = _merge(decided[place], verdict)
    return replace(ran, tests=tuple(decided))


def _merge(result: TestResult, verdict: TestResult) -> TestResult:
    if verdict.passed:
        return result
    if verdict.status == "wrong_answer" and verdict.value is False:
        return replace(result, status="wrong_answer")
    return replace(result, status="sandbox_error", error=f"checker: {verdict.status} {verdict.error}"[:2000])
