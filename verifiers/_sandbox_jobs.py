"""Jobs that verifiers send to the sandbox, and their outcomes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from verizero import sandbox
from verizero.pipeline.errors import IsolationError
from verizero.pipeline.types import Verdict
from verizero.sandbox import settings as sandbox_settings
from verizero.sandbox.api import check as sandbox_check
from verizero.sandbox.languages import NO_COMPILE
from verizero.sandbox.results import MOST, OVER_TIME
from verizero.sandbox.worker import codec
from verizero.verifiers._programs import with_prelude
from verizero.verifiers.base import VerifierParams
from verizero.verifiers.layouts.base import Language

SHOWN = 60
"""Characters of an input, an expected and a returned value that a reason shows."""
EXPECTED: Mapping[str, str] = {"stdin": "output", "function": "expected"}
"""Key of a test's expected result, by mode."""
CHECKED = (Path(__file__).parent / "in_sandbox" / "checked.py").read_text()
OF_JUDGES = frozenset((
    "atcoder", "bitarray", "gmpy2", "more_itertools", "networkx", "numba", "numpy", "pandas", "scipy", "shapely",
    "sklearn", "sortedcontainers", "sympy",
))  # fmt: skip
"""Packages that judges have (LeetCode, Codeforces, AtCoder). A program cannot be graded without one that it imports."""
_ABSENT = re.compile(r"No module named '(\w+)|needs the package '(\w+)")
CHECKER = "checker: "
"""Beginning of the error of a test whose checker failed."""


class SandboxParams(VerifierParams):
    """Limits of a run. None: the limit of the recipe's section `sandbox`, else the sandbox's default."""

    wall_s: float | None = Field(
        None, gt=0, le=MOST["wall_s"], description="seconds of wall time, for programs that sleep"
    )
    cpu_s: float | None = Field(None, gt=0, le=MOST["cpu_s"], description="seconds of CPU time")
    memory_mib: int | None = Field(None, ge=1, le=MOST["memory_mib"])
    output_kib: int | None = Field(None, ge=1, le=MOST["output_kib"])

    def limits(self, of_row: Mapping[str, float] | None = None) -> sandbox.Limits:
        """Return the sandbox's limits, replaced by those of a row, and those by the ones that are set here."""
        stated = {name: getattr(self, name) for name in SandboxParams.model_fields}
        own: dict[str, Any] = {k: v for k, v in stated.items() if v is not None}
        limits = replace(sandbox_settings.current().limits, **{**(of_row or {}), **own})
        # A test that may compute for longer than it may last would never get its time.
        return limits if "wall_s" in own else replace(limits, wall_s=max(limits.wall_s, 2 * limits.cpu_s))


@dataclass(frozen=True, slots=True)
class Job:
    """A program with its tests. With `stop`, tests after the first failure may be skipped."""

    program: str
    tests: tuple[Mapping[str, Any], ...]
    mode: Literal["stdin", "function", "suite"]
    language: Language = "python"
    stop: bool = False
    checker: str | None = None
    """Source of check(input, output, expected), which decides about the output or value in place of the expected."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Limits of the row, for those that the verifier's parameters do not set."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one job: the share of its tests that passed, and the detail of the first that failed."""

    status: str
    share: float = 0.0
    detail: str = ""
    seconds: float = 0.0
    tests: tuple[sandbox.TestResult, ...] = ()

    @property
    def is_over_budget(self) -> bool:
        """True if it ran longer than it may."""
        return self.status in OVER_TIME

    @property
    def is_failure(self) -> bool:
        """True if the sandbox, the tests or their checker failed, and not the program."""
        return self.status in ("sandbox_error", "verifier_error")

    def failure(self, extracted: str) -> Verdict | None:
        """Return the verdict if something else than the program failed, or it ran past its time, else None."""
        if self.is_failure:
            status: Literal["sandbox_error", "verifier_error"] = (
                "sandbox_error" if self.status == "sandbox_error" else "verifier_error"
            )
            return Verdict(status, 0.0, self.detail[:300], extracted, self.seconds)
        return Verdict("timeout", 0.0, self.status, extracted, self.seconds) if self.is_over_budget else None


Run = Callable[[Sequence[Job]], Sequence[Outcome]]


def runner(params: SandboxParams) -> Run:
    """Return a function that runs jobs by the settings of this process and returns their outcomes, in order.

    The function raises IsolationError if programs cannot run: walls too low, or the language's tool not installed.
    """

    def run(jobs: Sequence[Job]) -> list[Outcome]:
        results = _run([_trial(job, params.limits(job.limits)) for job in jobs])
        with_checker = [i for i, job in enumerate(jobs) if job.checker is not None]
        checks = [_checks(jobs[i], results[i]) for i in with_checker]
        verdicts = iter(_run([trial for trial in checks if trial is not None]))
        for i, trial in zip(with_checker, checks, strict=True):
            if trial is not None:
                results[i] = _checked(results[i], next(verdicts))
        return [_outcome(result, job) for job, result in zip(jobs, results, strict=True)]

    return run


def _run(trials: list[sandbox.Trial]) -> list[sandbox.RunResult]:
    return sandbox_settings.run(trials) if trials else []


def _trial(job: Job, limits: sandbox.Limits) -> sandbox.Trial:
    tests = job.tests
    if job.checker is not None:  # what a test returns is kept, and told to the checker
        tests = tuple({**test, EXPECTED[job.mode]: None} for test in tests)
    stop = job.stop and (job.checker is None or job.mode == "stdin")  # a value that is not None is no failure yet
    return sandbox.Trial(job.program, tests, job.mode, limits, stop, job.language)


def _checks(job: Job, result: sandbox.RunResult) -> sandbox.Trial | None:
    """Return the run of the checker on all outputs that the program gave; None if there are none."""
    argument, got = ("input", "stdout") if job.mode == "stdin" else ("args", "value")
    calls = [
        {
            "fn": "verizero_checked",
            "args": [test[argument], getattr(done, got), test[EXPECTED[job.mode]]],
            "expected": True,
        }
        for test, done in zip(job.tests, result.tests, strict=False)
        if _has_output(done)
    ]
    source = with_prelude(str(job.checker), CHECKED)
    return sandbox.Trial(source, calls, "function") if calls else None


def _has_output(test: sandbox.TestResult) -> bool:
    """True if the program ended by itself: nothing is expected of its output yet, or None of its function."""
    return test.status in ("passed", "wrong_answer")


def _checked(result: sandbox.RunResult, checks: sandbox.RunResult) -> sandbox.RunResult:
    """Return the result as the checker decides."""
    verdicts = iter(checks.tests)
    return replace(result, tests=tuple(_with_check(t, next(verdicts)) if _has_output(t) else t for t in result.tests))


def _with_check(test: sandbox.TestResult, check: sandbox.TestResult) -> sandbox.TestResult:
    if check.passed:
        return replace(test, status="passed")
    if check.status == "wrong_answer":
        return replace(test, status="wrong_answer", error=f"{test.error}\nits checker says no".strip())
    where = "" if check.status == "sandbox_error" else CHECKER
    return replace(test, status="sandbox_error", error=f"{where}{check.status} {check.error}"[:2000])


def programs_of(params: VerifierParams) -> list[SandboxParams]:
    """Return the parameters of the verifiers that run programs: this one, and the parts that it combines."""
    inside = [p for bound in params.combined_verifiers() for p in programs_of(bound.params)]
    return [*([params] if isinstance(params, SandboxParams) else []), *inside]


def _outcome(result: sandbox.RunResult, job: Job) -> Outcome:
    failed = next(((i, t) for i, t in enumerate(result.tests) if not t.passed), None)
    if result.status == "sandbox_error":
        return _failed(result, job)
    if lacks := next(filter(None, (_absent_package(job, test.error) for test in result.tests)), ""):
        reason = f"no_package: the program imports {lacks}; install it and name it in sandbox.packages"
        return Outcome("verifier_error", detail=reason, seconds=result.wall_s)
    detail = ""
    if failed is not None:
        number, test = failed
        lines = test.error.strip().splitlines()
        if test.error.startswith(NO_COMPILE):
            detail = lines[0]
        else:
            detail = f"test {number + 1}" + (f": {lines[-1]}" if lines else "")
        if test.status == "wrong_answer" and job.mode != "suite":
            detail += f": {_difference(job, job.tests[number], test)}"
    return Outcome(result.status, result.share_passed, detail, result.wall_s, result.tests)


def _absent_package(job: Job, error: str) -> str:
    """Return the package of judges for want of which a test failed; nothing if it failed for another reason."""
    names = {
        name for match in _ABSENT.findall(error) for name in match if name in OF_JUDGES and job.language == "python"
    }
    imported = (n for n in sorted(names) if re.search(rf"^\s*(import|from)\b.*\b{n}\b", job.program, re.MULTILINE))
    return next((name for name in imported if name not in sandbox_settings.modules()), "")


def _failed(result: sandbox.RunResult, job: Job) -> Outcome:
    """Return the outcome of a job that gave no result: by its own tests or checker, or by the sandbox."""
    error = next(t.error for t in result.tests if t.status == "sandbox_error").strip()
    if error.startswith(CHECKER):
        return Outcome("verifier_error", detail=f"bad_reference: {error}"[:300], seconds=result.wall_s)
    try:
        sandbox_check(_trial(job, sandbox_settings.current().limits))
    except (ValueError, TypeError, RecursionError) as exc:
        return Outcome("verifier_error", detail=f"bad_reference: {exc}"[:300], seconds=result.wall_s)
    return Outcome("sandbox_error", detail=f"test 1: {error.rsplit(chr(10), 1)[-1]}", seconds=result.wall_s)


def _difference(job: Job, test: Mapping[str, Any], done: sandbox.TestResult) -> str:
    """Return what went in, what was expected and what came, each shortened."""
    if job.mode == "stdin":
        argument, expected, got = test["input"], test["output"], done.stdout
    else:
        argument, expected, got = test["args"], test["expected"], done.value
    return f"for {_short(argument)} expected {_short(expected)}, got {_short(got)}"


def _short(value: Any) -> str:
    try:
        text = repr(value.strip() if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # an integer without a text, or a value of a thousand levels
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 2]}.."


def run_or_fail(jobs: Sequence[Job], run: Run) -> Sequence[Outcome]:
    """Return the outcomes, each "sandbox_error" if the sandbox, or the language of its program, cannot run here."""
    if not jobs:
        return []
    try:
        return run(jobs)
    except (IsolationError, OSError) as exc:
        if len({job.language for job in jobs}) == 1:
            return [Outcome("sandbox_error", detail=f"{type(exc).__name__}: {exc}")] * len(jobs)
    outcomes: dict[int, Outcome] = {}
    for language in dict.fromkeys(job.language for job in jobs):
        numbers = [i for i, job in enumerate(jobs) if job.language == language]
        outcomes.update(zip(numbers, run_or_fail([jobs[i] for i in numbers], run), strict=True))
    return [outcomes[i] for i in range(len(jobs))]


def same_tests(job: Job) -> str:
    """Return a key that is equal for jobs of equal program and equal tests."""
    parts = [job.program, job.mode, job.language, list(job.tests), job.checker, dict(job.limits)]
    try:
        return json.dumps(parts, default=lambda value: f"{type(value).__name__}:{value!r}")
    except ValueError:  # an integer of more digits than Python writes
        return codec.encode(parts).decode("ascii")
