"""Programs, run against tests in the sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from pipeline.errors import DataError
from pipeline.types import Attempt, Verdict
from verifiers._programs import Suite, once_each, program_of, suite_of
from verifiers._sandbox_jobs import Job, Language, Outcome, Run, SandboxParams, run_or_fail, runner, same_tests
from verifiers.base import verifier

Grading = Literal["all", "fraction"]


class CodeParams(SandboxParams):
    """How programs are graded."""

    grading: Grading = Field("all", description="all: 1 only if every test passes; fraction: the share that passes")
    max_tests: int | None = Field(None, ge=1, description="at most that many tests, spread evenly over the list")
    language: Language = Field("python", description="of the program; others than Python need stdin tests")


@verifier(batch=True)
def code(attempts: Sequence[Attempt], params: CodeParams) -> list[Verdict]:
    """1 for a program that passes its tests (or the share that it passes); past its time, "timeout".

    References: {"tests": [{"fn", "args", "expected"} or {"input", "output"}, ..], "fn"?}, or APPS and TACO
    {"inputs", "outputs", "fn_name"?}; see `verifiers/_programs.py`. The program stands in the last fence that fits, or
    is the whole answer. Equal programs with equal tests run once. A sandbox that fails gives "sandbox_error".
    """
    return grade(attempts, params, runner(params))


def grade(attempts: Sequence[Attempt], params: CodeParams, run: Run) -> list[Verdict]:
    """One verdict per attempt, in order, with `run` in the sandbox's place."""
    verdicts: list[Verdict | None] = [None] * len(attempts)
    places: list[int] = []
    work: list[tuple[str, Suite]] = []
    for i, attempt in enumerate(attempts):
        try:
            suite = suite_of(attempt.reference).first(params.max_tests)
            if params.language != "python" and suite.mode == "function":
                raise DataError(f"function tests call Python; for {params.language} give 'input' and 'output'")
        except (DataError, ValueError, TypeError) as exc:
            verdicts[i] = Verdict("verifier_error", reason=f"bad_reference: {exc}"[:300])
            continue
        found = program_of(attempt, params.language, suite.fn)
        if found.text is None:
            verdicts[i] = found.no_answer()
            continue
        places.append(i)
        work.append((found.text, suite))
    for i, verdict in zip(places, _judge(work, params, run), strict=True):
        verdicts[i] = verdict
    return [v for v in verdicts if v is not None]


def _judge(work: Sequence[tuple[str, Suite]], params: CodeParams, run: Run) -> list[Verdict]:
    stop = params.grading == "all"
    jobs = [Job(program, suite.tests, suite.mode, params.language, stop) for program, suite in work]
    others = [Job(p, s.alternative, s.mode, params.language, stop) if s.alternative else None for p, s in work]

    def run_distinct(chosen: list[int]) -> list[Verdict]:
        outcomes = list(run_or_fail([jobs[i] for i in chosen], run))
        again = {
            k: other
            for k, i in enumerate(chosen)
            if (other := others[i]) is not None and outcomes[k].status == "wrong_answer"
        }
        for k, outcome in zip(again, run_or_fail(list(again.values()), run), strict=True):
            if outcome.share > outcomes[k].share or outcome.status == "sandbox_error":
                outcomes[k] = outcome
        return [verdict_of(o, jobs[i].program, params.grading) for i, o in zip(chosen, outcomes, strict=True)]

    return once_each([same_tests(job) for job in jobs], run_distinct)


def verdict_of(outcome: Outcome, program: str, grading: Grading) -> Verdict:
    """The verdict for what the sandbox said of one program."""
    detail = f"{outcome.status}: {outcome.detail}"[:300] if outcome.detail else outcome.status
    if outcome.status == "sandbox_error":
        return Verdict("sandbox_error", 0.0, detail, program, outcome.seconds)
    if outcome.status == "passed":
        return Verdict("graded", 1.0, "passed", program, outcome.seconds)
    score = outcome.share if grading == "fraction" else 0.0
    status: Literal["timeout", "graded"] = "timeout" if outcome.is_over_budget and score == 0.0 else "graded"
    return Verdict(status, score, detail, program, outcome.seconds)
