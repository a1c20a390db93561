"""pytest-style asserts and test functions, held against a program in another process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from pipeline.errors import DataError
from pipeline.types import Attempt, Verdict
from verifiers._programs import once_each, program_of
from verifiers._replay import Replay, Suite, replay, suite_of
from verifiers._sandbox_jobs import Run, SandboxParams, runner
from verifiers.base import verifier


class UnitTestsParams(SandboxParams):
    """How programs are graded."""

    grading: Literal["all", "fraction"] = Field("all", description="all: 1 only if every test passes; else the share")


@verifier(batch=True)
def unit_tests(attempts: Sequence[Attempt], params: UnitTestsParams) -> list[Verdict]:
    """1 for a program that passes every test of the reference (or the share that it passes).

    Reference: {"tests": source or [asserts], "setup"?: source, "fn"?: name}; HumanEval's {"test", "entry_point"} and
    MBPP's {"test_list", "test_setup_code"} too. Tests may hold asserts, test_ functions, check(candidate), and of
    pytest `raises`, `approx` and `mark.parametrize`. They never share a process with the program, so it can neither see
    nor replace them; in return, tests can use only what functions return as plain values, raise, or change in their
    arguments.
    """
    return grade(attempts, params, runner(params))


def grade(attempts: Sequence[Attempt], params: UnitTestsParams, run: Run) -> list[Verdict]:
    """One verdict per attempt, in order, with `run` in the sandbox's place."""
    verdicts: list[Verdict | None] = [None] * len(attempts)
    places: list[int] = []
    work: list[tuple[str, Suite]] = []
    for i, attempt in enumerate(attempts):
        try:
            suite = _suite(attempt.reference)
        except DataError as exc:
            verdicts[i] = Verdict("verifier_error", reason=f"bad_reference: {exc}"[:300])
            continue
        fn = suite.names[0] if len(suite.names) == 1 else None
        found = program_of(attempt, "python", fn)
        if found.text is None:
            verdicts[i] = found.no_answer()
            continue
        places.append(i)
        work.append((found.text, suite))

    def run_distinct(chosen: list[int]) -> list[Verdict]:
        return [_verdict(r, params) for r in replay([work[k] for k in chosen], run, stop=params.grading == "all")]

    keys = [json.dumps([program, suite.tests, suite.names]) for program, suite in work]
    for i, verdict in zip(places, once_each(keys, run_distinct), strict=True):
        verdicts[i] = verdict
    return [v for v in verdicts if v is not None]


def _verdict(said: Replay, params: UnitTestsParams) -> Verdict:
    program, seconds = said.program, said.seconds
    if said.failure is not None:
        return Verdict("sandbox_error", 0.0, said.failure.detail[:300], program, seconds)
    broken = [end for end in said.ends if end and end.startswith("broken")]
    if broken:
        return Verdict("verifier_error", 0.0, f"bad_reference: test {broken[0]}"[:300], program, seconds)
    passed = sum(end == "passed" for end in said.ends)
    if passed == len(said.ends):
        return Verdict("graded", 1.0, "passed", program, seconds)
    score = passed / len(said.ends) if params.grading == "fraction" else 0.0
    first = next(f"test {i + 1} {end}" for i, end in enumerate(said.ends) if end not in (None, "passed"))
    if score == 0.0 and "timeout" in said.ends:
        return Verdict("timeout", 0.0, first[:300], program, seconds)
    return Verdict("graded", score, first[:300], program, seconds)


def _suite(reference: Any) -> Suite:
    if isinstance(reference, str | list):
        reference = {"tests": reference}
    if not isinstance(reference, Mapping):
        raise DataError(f"reference: expected an object with 'tests', got {reference!r:.80}")
    tests = next((reference[k] for k in ("tests", "test", "test_list") if reference.get(k)), None)
    source = "\n".join(tests) if isinstance(tests, list) and all(isinstance(t, str) for t in tests) else tests
    if not isinstance(source, str):
        raise DataError(f"reference.tests: expected Python source or a list of asserts, got {tests!r:.80}")
    setup = reference.get("setup") or reference.get("test_setup_code") or ""
    return suite_of(source, str(setup), reference.get("fn") or reference.get("entry_point"))
