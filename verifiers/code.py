"""Grade programs by tests in the sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers._programs import grade_distinct, missing_imports, program_of, with_prelude
from verizero.verifiers._sandbox_jobs import Job, Outcome, Run, SandboxParams, run_or_fail, runner, same_tests
from verizero.verifiers.base import verifier
from verizero.verifiers.layouts.base import Language, Suite, suite_of

Grading = Literal["all", "fraction"]


class CodeParams(SandboxParams):
    """The language of programs, and the score of a program that passes some of its tests."""

    grading: Grading = Field("all", description="all: 1 only if every test passes; fraction: the share that passes")
    max_tests: int | None = Field(None, ge=1, description="at most that many tests, spread evenly over the list")
    language: Language = Field("python", description="of programs whose row names none; but Python needs stdin tests")


@dataclass(frozen=True, slots=True)
class Work:
    """A program to run: as it was written, with its tests, and with their other reading."""

    program: str
    job: Job
    other: Job | None


@verifier(batch=True, reads=suite_of)
def code(attempts: Sequence[Attempt], params: CodeParams) -> list[Verdict]:
    """Return 1 for a program that passes its tests (or the share that it passes); "timeout" if it takes too long.

    References: {"tests": [{"fn", "args", "expected"} or {"input", "output"}, ..], "fn"?}, and those of public data
    sets: `verifiers/layouts/` has them. The program is in the last fence that fits, or is the whole
    answer. Equal programs with equal tests run once. A sandbox that fails gives "sandbox_error".
    """
    return grade(attempts, params, runner(params))


def grade(attempts: Sequence[Attempt], params: CodeParams, run: Run) -> list[Verdict]:
    """Return one verdict per attempt, in order, with `run` in the sandbox's place."""

    def prepare(attempt: Attempt) -> Work | Verdict:
        suite = suite_of(attempt.reference).first(params.max_tests)
        if len(suite.tests) > (most := params.limits().max_tests):
            raise DataError(f"{len(suite.tests)} tests, and at most {most} run; set max_tests of the verifier")
        language = suite.language or params.language
        if language != "python" and (suite.mode == "function" or suite.setup):
            raise DataError(f"function tests and setup are Python; for {language} give 'input' and 'output'")
        program = program_of(attempt, language, suite.names)
        return program.no_answer() if program.text is None else _work(program.text, suite, language, params)

    def run_distinct(work: list[Work]) -> list[Verdict]:
        outcomes = list(run_or_fail([w.job for w in work], run))
        # Only a wrong answer may be right by the other reading of the tests.
        again = {i: w.other for i, w in enumerate(work) if w.other is not None and outcomes[i].status == "wrong_answer"}
        for i, outcome in zip(again, run_or_fail(list(again.values()), run), strict=True):
            if outcome.share > outcomes[i].share or outcome.is_failure:
                outcomes[i] = outcome
        return [verdict_of(o, w.program, params.grading) for o, w in zip(outcomes, work, strict=True)]

    return grade_distinct(attempts, prepare, lambda work: same_tests(work.job), run_distinct)


def _work(program: str, suite: Suite, language: Language, params: CodeParams) -> Work:
    imports = missing_imports(program, suite.names) if suite.mode == "function" else ""
    whole = with_prelude(program, imports, suite.setup)
    job = Job(
        whole, suite.tests, suite.mode, language, params.grading == "all", checker=suite.checker, limits=suite.limits
    )
    return Work(program, job, None if suite.alternative is None else replace(job, tests=suite.alternative))


def verdict_of(outcome: Outcome, program: str, grading: Grading) -> Verdict:
    """Return the verdict on one program by the sandbox's outcome."""
    failure = outcome.failure(program)
    if failure is not None and failure.is_infrastructure:
        return failure
    detail = f"{outcome.status}: {outcome.detail}"[:300] if outcome.detail else outcome.status
    if outcome.status == "passed":
        return Verdict("graded", 1.0, "passed", program, outcome.seconds)
    score = outcome.share if grading == "fraction" else 0.0
    status: Literal["timeout", "graded"] = "timeout" if outcome.is_over_budget and score == 0.0 else "graded"
    return Verdict(status, score, detail, program, outcome.seconds)
