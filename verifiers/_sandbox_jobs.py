"""The door to the sandbox that all verifiers use: jobs in, outcomes out, whatever way they are run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, Field

import sandbox
from pipeline.errors import IsolationError
from verifiers import _sandbox_settings
from verifiers.base import BoundVerifier, VerifierParams

OVER_BUDGET = frozenset({"timeout", "cpu_limit"})
Language = Literal["python", "c", "cpp", "javascript", "bash"]


class SandboxParams(VerifierParams):
    """Limits of one run; None is the recipe's (section `sandbox`), and where that has none the sandbox's own."""

    wall_s: float | None = Field(None, gt=0, description="seconds of wall time, for programs that sleep")
    cpu_s: float | None = Field(None, gt=0, description="seconds of CPU time")
    memory_mib: int | None = Field(None, ge=1)
    output_kib: int | None = Field(None, ge=1)

    def limits(self) -> sandbox.Limits:
        """The limits of the place that programs run at, with those that are set here."""
        stated: dict[str, Any] = {
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "memory_mib": self.memory_mib,
            "output_kib": self.output_kib,
        }
        return replace(_sandbox_settings.current().limits, **{k: v for k, v in stated.items() if v is not None})


@dataclass(frozen=True, slots=True)
class Job:
    """One program with its tests. With `stop`, tests after the first that failed may be left out."""

    program: str
    tests: tuple[Mapping[str, Any], ...]
    mode: Literal["stdin", "function"]
    language: Language = "python"
    stop: bool = False
    needs_values: bool = False
    """What its functions return is asked for, not only whether it is what was expected."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one test: its status, what it printed, and what its function returned (plain values only)."""

    status: str
    stdout: str = ""
    value: Any = None

    @property
    def is_over_budget(self) -> bool:
        """It ran past its time."""
        return self.status in OVER_BUDGET


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one job. `share` is the part of its tests that passed; `detail` is of the first that failed."""

    status: str
    share: float = 0.0
    detail: str = ""
    seconds: float = 0.0
    tests: tuple[Ran, ...] = ()

    @property
    def is_over_budget(self) -> bool:
        """The program ran past its time."""
        return self.status in OVER_BUDGET


Run = Callable[[Sequence[Job]], Sequence[Outcome]]


def runner(params: SandboxParams) -> Run:
    """A function that runs jobs at the place of this process, in order, as many at a time as it has workers.

    It raises IsolationError where programs cannot run: walls too low, or the language's tool not installed.
    """

    def run(jobs: Sequence[Job]) -> list[Outcome]:
        limits = params.limits()
        asked = [sandbox.Job(j.program, j.tests, j.mode, limits, j.stop, j.language, j.needs_values) for j in jobs]
        return [_outcome(result) for result in _sandbox_settings.run(asked)] if asked else []

    return run


def programs_of(params: BaseModel) -> list[SandboxParams]:
    """The parameters of those that run programs: of this verifier, and of the ones that it combines."""
    parts = (getattr(part, "bound", None) for part in getattr(params, "parts", ()))
    inside = [p for bound in parts if isinstance(bound, BoundVerifier) for p in programs_of(bound.params)]
    return [*([params] if isinstance(params, SandboxParams) else []), *inside]


def _outcome(result: sandbox.RunResult) -> Outcome:
    failed = next(((i, t) for i, t in enumerate(result.tests) if not t.passed), None)
    detail = ""
    if failed is not None:
        number, test = failed
        last = test.error.strip().rsplit("\n", 1)[-1]
        detail = f"test {number + 1}" + (f": {last}" if last else "")
    tests = tuple(Ran(t.status, t.stdout, t.value) for t in result.tests)
    return Outcome(result.status, result.share_passed, detail, result.wall_s, tests)


def run_or_fail(jobs: Sequence[Job], run: Run) -> Sequence[Outcome]:
    """The outcomes, or "sandbox_error" for each where the sandbox itself cannot run."""
    if not jobs:
        return []
    try:
        return run(jobs)
    except (IsolationError, OSError) as exc:
        return [Outcome("sandbox_error", detail=f"{type(exc).__name__}: {exc}")] * len(jobs)


def same_tests(job: Job) -> str:
    """A key that is equal for jobs of equal program and equal tests."""
    return json.dumps([job.program, job.mode, job.language, list(job.tests)], default=_exact)


def _exact(value: Any) -> str:
    return f"{type(value).__name__}:{value!r}"
