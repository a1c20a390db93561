"""Grade programs by tests in the sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers._programs import grade_distinct, program_of, suite_of
from verizero.verifiers._sandbox_jobs import Job, Language, Outcome, Run, SandboxParams, run_or_fail, runner, same_tests
from verizero.verifiers.base import verifier

Grading = Literal["all", "fraction"]


class CodeParams(SandboxParams):
    """The language of programs, and the score of a program that passes some of its tests."""

    grading: Grading = Field("all", description="all: 1 only if every test passes; fraction: the share that passes")
    max_tests: int | None = Field(None, ge=1, description="at most that many tests, spread evenly over the list")
    language: Language = Field("python", description="of the program; others than Python need stdin tests")


@verifier(batch=True)
def code(attempts: Sequence[Attempt], params: CodeParams) -> list[Verdict]:
    """Return 1 for a program that passes its tests (or the share that it passes); "timeout" if it takes too long.

    References: {"tests": [{"fn", "args", "expected"} or {"input", "output"}, ..], "fn"?}, or APPS and TACO
    {"inputs", "outputs", "fn_name"?}; see `verifiers/_programs.py`. The program is in the last fence that fits, or
    is the whole answer. Equal programs with equal tests run once. A sandbox that fails gives "sandbox_error".
    """
    return grade(attempts, params, runner(params))


def grade(attempts: Sequence[Attempt], params: CodeParams, run: Run) -> list[Verdict]:
    """Return one verdict per attempt, in order, with `run` in the sandbox's place."""
    stop = params.grading == "all"

    def prepare(attempt: Attempt) -> tuple[Job, Job | None] | Verdict:
        suite = suite_of(attempt.reference).first(params.max_tests)
        if params.language != "python" and suite.mode == "function":
            raise DataError(f"function tests call Python; for {params.language} give 'input' and 'output'")
        program = program_of(attempt, params.language, suite.names)
        if program.text is None:
            return program.no_answer()
        job = Job(program.text, suite.tests, suite.mode, params.language, stop)
        return job, None if suite.alternative is None else replace(job, tests=suite.alternative)

    def run_distinct(work: list[tuple[Job, Job | None]]) -> list[Verdict]:
        outcomes = list(run_or_fail([job for job, _ in work], run))
        # Only a wrong answer may be right by the other reading of the tests.
        again = {
            i: other for i, (_, other) in enumerate(work) if other is not None and outcomes[i].status == "wrong_answer"
        }
        for i, outcome in zip(again, run_or_fail(list(again.values()), run), strict=True):
            if outcome.share > outcomes[i].share or outcome.status == "sandbox_error":
                outcomes[i] = outcome
        return [verdict_of(o, job.program, params.grading) for o, (job, _) in zip(outcomes, work, strict=True)]

    return grade_distinct(attempts, prepare, lambda work: same_tests(work[0]), run_distinct)


def verdict_of(outcome: Outcome, program: str, grading: Grading) -> Verdict:
    """Return the verdict on one program by the sandbox's outcome."""
    detail = f"{outcome.status}: {outcome.detail}"[:300] if outcome.detail else outcome.status
    if outcome.status == "sandbox_error":
        return Verdict("sandbox_error", 0.0, detail, program, outcome.seconds)
    if outcome.status == "passed":
        return Verdict("graded", 1.0, "passed", program, outcome.seconds)
    score = outcome.share if grading == "fraction" else 0.0
    status: Literal["timeout", "graded"] = "timeout" if outcome.is_over_budget and score == 0.0 else "graded"
    return Verdict(status, score, detail, program, outcome.seconds)
