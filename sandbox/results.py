"""The nouns: limits, tests, and what came of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

Mode = Literal["stdin", "function"]
Status = Literal[
    "passed", "wrong_answer", "runtime_error", "timeout", "cpu_limit", "memory_limit", "output_limit", "bad_output",
    "sandbox_error",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """What one test may use. A program's tests share a process only while together they stay below one test's share.

    Raises: ValueError naming the limit that is not positive.
    """

    wall_s: float = 10.0
    """Elapsed seconds of one test from its start, without those it waited for a CPU that other work held."""
    cpu_s: float = 5.0
    """CPU seconds of one test, over all its threads."""
    memory_mib: int = 512
    """Resident memory, the interpreter's included (about 20)."""
    output_kib: int = 1024
    """Standard output of one test, and the encoded size of a returned value."""
    disk_mib: int = 16
    """Files in the scratch folder, of which there may be 2,048."""
    processes: int = 32
    """Threads, and in languages that may start processes, processes, at one time."""
    max_tests: int = 1000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"Limits.{field.name} must be a positive number, got {value!r}")
            if field.name not in ("wall_s", "cpu_s"):
                object.__setattr__(self, field.name, math.ceil(value))

    def lowered(self, **asked: float | None) -> Limits:
        """These limits, each lowered to what was asked for; never raised."""
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        return Limits(**{k: v if asked.get(k) is None else min(v, asked[k]) for k, v in kept.items()})


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test of one program."""

    __test__ = False  # not a test case, whatever its name says to pytest

    status: Status
    stdout: str = ""
    """Cut at the output limit."""
    error: str = ""
    """The last lines that the program wrote to stderr, or why there is no result."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mib: float = 0.0
    """Of the process that ran this test, which may have run others before."""
    value: Any = None
    """What the function returned, in function mode; `codec.Opaque` for an object that is not a plain value."""

    @property
    def passed(self) -> bool:
        """The output or value was the expected one."""
        return self.status == "passed"


@dataclass(frozen=True, slots=True)
class RunResult:
    """One program on its tests."""

    tests: tuple[TestResult, ...]
    """In the order given. Shorter than the tests given only with `stop_on_failure`."""
    level: int
    """Isolation it ran under: 3 namespaces too, 2 Landlock and seccomp, 1 limits only."""
    num_tests: int
    wall_s: float = 0.0
    """From the start of the run; waiting for a free worker is not in it."""

    @property
    def passed(self) -> bool:
        """Every test given was run and passed."""
        return len(self.tests) == self.num_tests and all(t.passed for t in self.tests)

    @property
    def status(self) -> Status:
        """ "passed", else "sandbox_error" if any test has it, else that of the first test that failed."""
        bad = [t.status for t in self.tests if not t.passed]
        if "sandbox_error" in bad:
            return "sandbox_error"
        return bad[0] if bad else "passed" if self.passed else "sandbox_error"

    @property
    def error(self) -> str:
        """The error text of the first test that failed; empty when all passed."""
        return next((t.error for t in self.tests if not t.passed), "")

    @property
    def share_passed(self) -> float:
        """Passed tests over all tests given."""
        return sum(t.passed for t in self.tests) / self.num_tests


@dataclass(frozen=True, slots=True)
class Case:
    """A test in its one inner form: input bytes for the child, and the expected thing, which stays here."""

    data: bytes
    expected: Any


def is_text(value: object) -> bool:
    """A string, or bytes."""
    return isinstance(value, (str, bytes))


def require_tests(tests: Sequence[Mapping[str, Any]], limits: Limits) -> None:
    """Raises: ValueError when there is no test (a program without tests proves nothing), or too many."""
    if isinstance(tests, (str, bytes, Mapping)):
        raise ValueError(f"tests must be a list of tests, got {type(tests).__name__}")
    if not tests:
        raise ValueError("tests is empty: a program without tests cannot pass; give at least one test")
    if len(tests) > limits.max_tests:
        raise ValueError(f"{len(tests)} tests exceed Limits.max_tests={limits.max_tests}; raise it or send fewer")
