"""Asserts and test functions in pytest's style, checked against a program in another process, or else in its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from verizero.pipeline.errors import IsolationError
from verizero.pipeline.types import Attempt, Verdict
from verizero.sandbox.results import OVER_TIME
from verizero.verifiers._one_process import REMEDY, job_of, may_share, results_of
from verizero.verifiers._programs import grade_distinct, missing_imports, program_of, with_prelude
from verizero.verifiers._sandbox_jobs import Job, Outcome, Run, SandboxParams, run_or_fail, runner
from verizero.verifiers._test_suites import TestSuite, suite_of
from verizero.verifiers.base import verifier
from verizero.verifiers.layouts.base import asserts_of

_ONE = " (in one process)"
"""End of the reason of a verdict where the program could reach its tests."""


class UnitTestsParams(SandboxParams):
    """The score of a program that passes some of its tests."""

    grading: Literal["all", "fraction"] = Field("all", description="all: 1 only if every test passes; else the share")


@verifier(batch=True, reads=asserts_of)
def unit_tests(attempts: Sequence[Attempt], params: UnitTestsParams) -> list[Verdict]:
    """Return 1 for a program that passes every test of the reference (or the share that it passes).

    Reference: {"tests": source or [asserts], "setup"?: source, "fn"?: name, "prompt"?: source}, or one of the layouts
    of data sets. Tests may hold asserts, test_ functions, check(candidate), classes of unittest, and of pytest
    `raises`, `approx`, `parametrize` and `capsys`. They share no process with the program, which can neither
    see nor replace them. Tests that use objects of the program, mocks or fixtures need one process: they run under
    pytest where sandbox.packages has it, and are verifier_error elsewhere.
    """
    return grade(attempts, params, runner(params))


def grade(attempts: Sequence[Attempt], params: UnitTestsParams, run: Run) -> list[Verdict]:
    """Return one verdict per attempt, in order, with `run` in the sandbox's place."""

    def prepare(attempt: Attempt) -> tuple[str, TestSuite] | Verdict:
        asserts = asserts_of(attempt.reference)
        suite = suite_of(asserts.tests, asserts.setup, asserts.fn, asserts.prompt)
        called = suite.names + suite.imported
        program = program_of(attempt, "python", called)
        if program.text is None:
            return program.no_answer()
        return with_prelude(program.text, missing_imports(program.text, called), asserts.prompt), suite

    def key(work: tuple[str, TestSuite]) -> str:
        return json.dumps([work[0], work[1].tests, work[1].names, work[1].records])

    def run_distinct(work: list[tuple[str, TestSuite]]) -> list[Verdict]:
        stop = params.grading == "all"
        try:
            shares = any(suite.one_process for _, suite in work) and may_share()
        except (IsolationError, OSError) as exc:
            return [Verdict("sandbox_error", 0.0, f"{type(exc).__name__}: {exc}"[:300], p) for p, _ in work]
        jobs = [
            job_of(program, suite.tests, suite.names)
            if suite.one_process
            else Job(program, suite.jobs(), "suite", stop=stop)
            for program, suite in work
            if shares or not suite.one_process
        ]
        outcomes = iter(run_or_fail(jobs, run))
        return [
            _verdict(next(outcomes), program, params, suite.one_process)
            if shares or not suite.one_process
            else Verdict("verifier_error", 0.0, f"needs one process: {suite.one_process:.150}; {REMEDY}", program)
            for program, suite in work
        ]

    return grade_distinct(attempts, prepare, key, run_distinct)


def _verdict(outcome: Outcome, program: str, params: UnitTestsParams, one_process: str) -> Verdict:
    seconds = outcome.seconds
    outcome = results_of(outcome) if one_process else outcome
    if outcome.is_failure and (failure := outcome.failure(program)) is not None:
        return failure
    for number, test in enumerate(outcome.tests, 1):
        if test.status == "bad_test":
            return Verdict("verifier_error", 0.0, f"bad_reference: test {number}: {test.error}"[:300], program, seconds)
    # A test that calls nothing of the program says nothing about it.
    counted = [(n, test) for n, test in enumerate(outcome.tests, 1) if test.value is not False]
    if not counted:
        return Verdict("verifier_error", 0.0, "bad_reference: no test calls the program", program, seconds)
    failed = [(n, test) for n, test in counted if test.status != "passed"]
    if not failed:
        return Verdict("graded", 1.0, f"passed{_ONE if one_process else ''}", program, seconds)
    number, first = failed[0]
    reason = f"test {number}: {first.error or first.status}"[:260] + (_ONE if one_process else "")
    score = 1 - len(failed) / len(counted) if params.grading == "fraction" else 0.0
    if score == 0.0 and any(test.status in OVER_TIME for _, test in failed):
        return Verdict("timeout", 0.0, reason, program, seconds)
    return Verdict("graded", score, reason, program, seconds)
