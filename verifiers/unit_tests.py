"""Asserts and test functions in pytest's style, checked against a program in another process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers._prelude import missing_imports, with_prelude
from verizero.verifiers._programs import grade_distinct, program_of
from verizero.verifiers._replay import AssertSuite, Replay, assert_suite_of, replay
from verizero.verifiers._sandbox_jobs import Run, SandboxParams, runner
from verizero.verifiers.base import verifier
from verizero.verifiers.layouts.base import asserts_of


class UnitTestsParams(SandboxParams):
    """The score of a program that passes some of its tests."""

    grading: Literal["all", "fraction"] = Field("all", description="all: 1 only if every test passes; else the share")


@verifier(batch=True, reads=asserts_of)
def unit_tests(attempts: Sequence[Attempt], params: UnitTestsParams) -> list[Verdict]:
    """Return 1 for a program that passes every test of the reference (or the share that it passes).

    Reference: {"tests": source or [asserts], "setup"?: source, "fn"?: name}; HumanEval's {"test", "entry_point"} and
    MBPP's {"test_list", "test_setup_code"} too. Tests may hold asserts, test_ functions, check(candidate), and of
    pytest `raises`, `approx` and `mark.parametrize`. They never share a process with the program, so it can neither see
    nor replace them; in return, tests can use only what functions return as plain values, raise, or change in their
    arguments.
    """
    return grade(attempts, params, runner(params))


def grade(attempts: Sequence[Attempt], params: UnitTestsParams, run: Run) -> list[Verdict]:
    """Return one verdict per attempt, in order, with `run` in the sandbox's place."""

    def prepare(attempt: Attempt) -> tuple[str, AssertSuite] | Verdict:
        asserts = asserts_of(attempt.reference)
        setup = f"{asserts.prompt}\n{asserts.setup}"
        suite = assert_suite_of(asserts.tests, setup, asserts.fn)
        program = program_of(attempt, "python", suite.names)
        if program.text is None:
            return program.no_answer()
        return with_prelude(program.text, missing_imports(program.text, suite.names), asserts.prompt), suite

    def key(work: tuple[str, AssertSuite]) -> str:
        return json.dumps([work[0], work[1].tests, work[1].names])

    def run_distinct(work: list[tuple[str, AssertSuite]]) -> list[Verdict]:
        return [_verdict(r, params) for r in replay(work, run, stop=params.grading == "all")]

    return grade_distinct(attempts, prepare, key, run_distinct)


def _verdict(replayed: Replay, params: UnitTestsParams) -> Verdict:
    program, seconds = replayed.program, replayed.seconds
    if replayed.failure is not None:
        return Verdict("sandbox_error", 0.0, replayed.failure.detail[:300], program, seconds)
    broken = [end for end in replayed.ends if end and end.startswith("broken")]
    if broken:
        return Verdict("verifier_error", 0.0, f"bad_reference: test {broken[0]}"[:300], program, seconds)
    passed = sum(end == "passed" for end in replayed.ends)
    if passed == len(replayed.ends):
        return Verdict("graded", 1.0, "passed", program, seconds)
    score = passed / len(replayed.ends) if params.grading == "fraction" else 0.0
    first = next(f"test {i + 1} {end}" for i, end in enumerate(replayed.ends) if end not in (None, "passed"))
    if score == 0.0 and "timeout" in replayed.ends:
        return Verdict("timeout", 0.0, first[:300], program, seconds)
    return Verdict("graded", score, first[:300], program, seconds)
