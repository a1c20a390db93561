"""Jobs that verifiers send to the sandbox, and their outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from verizero import sandbox
from verizero.pipeline.errors import IsolationError
from verizero.pipeline.types import Verdict
from verizero.sandbox import settings as sandbox_settings
from verizero.verifiers.base import VerifierParams

OVER_BUDGET = frozenset({"timeout", "cpu_limit"})
Language = Literal["python", "c", "cpp", "javascript", "bash"]


class SandboxParams(VerifierParams):
    """Limits of a run. None: the limit of the recipe's section `sandbox`, else the sandbox's default."""

    wall_s: float | None = Field(None, gt=0, description="seconds of wall time, for programs that sleep")
    cpu_s: float | None = Field(None, gt=0, description="seconds of CPU time")
    memory_mib: int | None = Field(None, ge=1)
    output_kib: int | None = Field(None, ge=1)

    def limits(self) -> sandbox.Limits:
        """Return the sandbox's limits, replaced by those that are set here."""
        stated = {name: getattr(self, name) for name in SandboxParams.model_fields}
        return replace(sandbox_settings.current().limits, **{k: v for k, v in stated.items() if v is not None})


@dataclass(frozen=True, slots=True)
class Job:
    """A program with its tests. With `stop`, tests after the first failure may be skipped."""

    program: str
    tests: tuple[Mapping[str, Any], ...]
    mode: Literal["stdin", "function"]
    language: Language = "python"
    stop: bool = False
    needs_values: bool = False
    """True to get the returned values too, not only the status of each test."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The status of a run, and if it ran too long."""

    status: str

    @property
    def is_over_budget(self) -> bool:
        """True if it ran longer than it may."""
        return self.status in OVER_BUDGET


@dataclass(frozen=True, slots=True)
class Ran(Timed):
    """The result of one test: its status, the text that it printed, and the plain value that its function returned."""

    stdout: str = ""
    value: Any = None


@dataclass(frozen=True, slots=True)
class Outcome(Timed):
    """The result of one job: the share of its tests that passed, and the detail of the first that failed."""

    share: float = 0.0
    detail: str = ""
    seconds: float = 0.0
    tests: tuple[Ran, ...] = ()

    def failure(self, extracted: str) -> Verdict | None:
        """Return the verdict if the sandbox failed or the program ran past its time, else None."""
        if self.status == "sandbox_error":
            return Verdict("sandbox_error", 0.0, self.detail[:300], extracted, self.seconds)
        return Verdict("timeout", 0.0, self.status, extracted, self.seconds) if self.is_over_budget else None


Run = Callable[[Sequence[Job]], Sequence[Outcome]]


def runner(params: SandboxParams) -> Run:
    """Return a function that runs jobs by the settings of this process and returns their outcomes, in order.

    The function raises IsolationError if programs cannot run: walls too low, or the language's tool not installed.
    """

    def run(jobs: Sequence[Job]) -> list[Outcome]:
        limits = params.limits()
        asked = [sandbox.Trial(j.program, j.tests, j.mode, limits, j.stop, j.language, j.needs_values) for j in jobs]
        results = sandbox_settings.run(asked) if asked else []
        return [_outcome(result, job.needs_values) for job, result in zip(jobs, results, strict=True)]

    return run


def programs_of(params: VerifierParams) -> list[SandboxParams]:
    """Return the parameters of the verifiers that run programs: this one, and the parts that it combines."""
    inside = [p for bound in params.combined_verifiers() for p in programs_of(bound.params)]
    return [*([params] if isinstance(params, SandboxParams) else []), *inside]


def _outcome(result: sandbox.RunResult, needs_values: bool) -> Outcome:
    failed = next(((i, t) for i, t in enumerate(result.tests) if not t.passed), None)
    detail = ""
    if failed is not None:
        number, test = failed
        last = test.error.strip().rsplit("\n", 1)[-1]
        detail = f"test {number + 1}" + (f": {last}" if last else "")
    tests = tuple(Ran(t.status, t.stdout, t.value if needs_values else None) for t in result.tests)
    return Outcome(result.status, result.share_passed, detail, result.wall_s, tests)


def run_or_fail(jobs: Sequence[Job], run: Run) -> Sequence[Outcome]:
    """Return the outcomes, each "sandbox_error" if the sandbox itself cannot run."""
    if not jobs:
        return []
    try:
        return run(jobs)
    except (IsolationError, OSError) as exc:
        return [Outcome("sandbox_error", detail=f"{type(exc).__name__}: {exc}")] * len(jobs)


def same_tests(job: Job) -> str:
    """Return a key that is equal for jobs of equal program and equal tests."""
    return json.dumps([job.program, job.mode, job.language, list(job.tests)], default=_exact)


def _exact(value: Any) -> str:
    return f"{type(value).__name__}:{value!r}"
