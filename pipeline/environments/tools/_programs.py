"""Runs programs of the policy in the sandbox, for the tools `python` and `shell`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from verizero import sandbox
from verizero.pipeline.environments.tools.base import ToolParams
from verizero.pipeline.errors import EnvironmentFailed, IsolationError
from verizero.sandbox import settings
from verizero.sandbox.results import MOST


class ProgramParams(ToolParams):
    """Limits of one program."""

    wall_s: float = Field(10.0, gt=0, le=MOST["wall_s"], description="seconds of wall time, for programs that sleep")
    cpu_s: float = Field(5.0, gt=0, le=MOST["cpu_s"], description="seconds of CPU time")
    memory_mib: int = Field(512, ge=1, le=MOST["memory_mib"])
    output_kib: int = Field(64, ge=1, le=MOST["output_kib"], description="standard output")

    def languages(self) -> frozenset[str]:
        """Return Python, in which most programs are written."""
        return frozenset({"python"})

    @property
    def limits(self) -> sandbox.Limits:
        """The sandbox's limits."""
        return sandbox.Limits(self.wall_s, self.cpu_s, self.memory_mib, self.output_kib)


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a program. The status "passed" means that it ended by itself, with exit code 0."""

    status: str
    stdout: str = ""
    error: str = ""

    @property
    def text(self) -> str:
        """The output as the policy reads it: what was printed, then the reason for which the program was ended."""
        reason = {"passed": "", "runtime_error": self.error.strip() or "error"}.get(
            self.status, self.status.replace("_", " ")
        )
        return "\n".join(part for part in (self.stdout.rstrip("\n"), reason) if part) or "no output"


def alone(code: str, limits: sandbox.Limits, language: str = "python") -> Output:
    """Run a program in a process of its own, on empty input. Raises: EnvironmentFailed if the sandbox failed."""
    trial = sandbox.Trial(code, [{"input": "", "output": None}], "stdin", limits, language=language)
    (result,) = run(trial)
    return Output(result.status, result.stdout, result.error)


def run(trial: sandbox.Trial) -> Sequence[sandbox.TestResult]:
    """Return the results of a program's tests in this process's sandbox. Raises: EnvironmentFailed if that fails."""
    try:
        (result,) = settings.run([trial])
    except (IsolationError, ValueError, OSError) as exc:  # a service that refuses its token raises ValueError
        raise EnvironmentFailed(f"the sandbox cannot run a program: {exc}") from exc
    if result.status == "sandbox_error":
        raise EnvironmentFailed(f"the sandbox failed: {result.error[:300]}")
    return result.tests
