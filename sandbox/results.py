"""The limits of a test, and the results of tests and programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from verizero.sandbox.worker import codec

Mode = Literal["stdin", "function", "suite"]
Status = Literal[
    "passed", "wrong_answer", "runtime_error", "timeout", "cpu_limit", "memory_limit", "output_limit", "bad_output",
    "bad_test", "sandbox_error",
]  # fmt: skip
WITH_NAMESPACES = 3
"""Isolation level at which each run has namespaces of its own."""
MOST: Mapping[str, int] = {
    "wall_s": 7200, "cpu_s": 3600, "memory_mib": 1_000_000, "output_kib": 1_000_000, "disk_mib": 1_000_000,
    "processes": 32_768, "max_tests": 65_535,
}  # fmt: skip
"""The most of each limit: no program holds a worker for longer, and each number fits into an order to it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one test. Tests share a process only as long as together they use less than half of them.

    Raises: ValueError naming the limit that is not positive, or above `MOST`.
    """

    wall_s: float = 10.0
    """Elapsed seconds of one test from its start, without the seconds in which it waited for a busy CPU."""
    cpu_s: float = 5.0
    """CPU seconds of one test, over all its threads."""
    memory_mib: int = 512
    """Resident memory, the interpreter's included (about 20)."""
    output_kib: int = 1024
    """Standard output of one test, and the encoded size of a returned value."""
    disk_mib: int = 16
    """Files in the scratch folder, of which there may be 2,048."""
    processes: int = 32
    """Threads at one time, and processes too in languages that may start them."""
    max_tests: int = 1000

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
                raise ValueError(f"Limits.{name} must be a positive number of at most {most}, got {value!r}")
        for limit in fields(self)[2:]:
            object.__setattr__(self, limit.name, math.ceil(getattr(self, limit.name)))


DEFAULT_LIMITS = Limits()
Tests = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Trial:
    """A program with its tests."""

    program: str
    tests: Tests
    mode: Mode = "stdin"
    limits: Limits = DEFAULT_LIMITS
    stop_on_failure: bool = False
    language: str = "python"
    """Languages other than Python (`sandbox.available()` names them) take stdin tests, each in a new process."""


@dataclass(frozen=True, slots=True)
class TestResult:
    """The result of one test of one program."""

    __test__ = False  # not a test case, whatever its name says to pytest

    status: Status
    stdout: str = ""
    """Standard output, cut at the output limit."""
    error: str = ""
    """The last lines that the program wrote to stderr, or the reason why there is no result."""
    cpu_s: float = 0.0
    """CPU seconds of the process that ran this test, measured from outside. It may have run other tests too."""
    wall_s: float = 0.0
    """Elapsed seconds of that process, measured from outside."""
    peak_mib: float = 0.0
    """Peak memory of that process."""
    encoded: bytes = field(default=b"", repr=False)
    """Returned value in function mode, as it came from the program's process."""

    @property
    def value(self) -> Any:
        """The returned value in function mode; it is decoded at each access.

        A set is `codec.Members`, a dict with keys other than text `codec.Pairs`: they equal Python's own. An object
        that is not a plain value is `codec.Opaque`.
        """
        return codec.read(self.encoded) if self.encoded else None

    @property
    def passed(self) -> bool:
        """True if the output or value was the expected one."""
        return self.status == "passed"


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one program on its tests."""

    tests: tuple[TestResult, ...]
    """In the order of the tests. Fewer than the tests only with `stop_on_failure`."""
    level: int
    """Isolation level of the run: 3 namespaces too, 2 Landlock and seccomp, 1 limits only."""
    num_tests: int
    wall_s: float = 0.0
    """Seconds from the start of the run, without the wait for a free worker."""

    @classmethod
    def failed(cls, error: str, num_tests: int, level: int) -> RunResult:
        """Return the result of a program that the sandbox could not run."""
        return cls((TestResult("sandbox_error", error=error),) * num_tests, level, num_tests)

    @property
    def passed(self) -> bool:
        """True if every test was run and passed."""
        return len(self.tests) == self.num_tests and all(t.passed for t in self.tests)

    @property
    def status(self) -> Status:
        """The status "passed", else "sandbox_error" if any test has it, else that of the first test that failed.

        "bad_test" means that the test itself is at fault; only a suite has it.
        """
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
        """The share of passed tests among all."""
        return sum(t.passed for t in self.tests) / self.num_tests


@dataclass(frozen=True, slots=True)
class Case:
    """A test, ready to run: the bytes for the child, and the expected value, which stays in the caller."""

    data: bytes
    expected: Any
    expected_bytes: int = 0
    """Size of the expected output or value, as a program writes it."""


def limits_for(cases: Sequence[Case], limits: Limits) -> Limits:
    """Return the limits with an output limit of twice the longest expected output, if that is more.

    Raises: ValueError naming the first test whose input is too large for the program's memory.
    """
    for number, case in enumerate(cases):
        if len(case.data) > limits.memory_mib << 18:
            raise ValueError(
                f"test {number}: the input has {len(case.data) >> 20} MiB, more than a quarter of "
                f"Limits.memory_mib={limits.memory_mib}; raise memory_mib or drop the test"
            )
    longest_kib = -(-max(case.expected_bytes for case in cases) // 512)
    return replace(limits, output_kib=max(limits.output_kib, longest_kib))


OVER_TIME = frozenset({"timeout", "cpu_limit"})
MAX_OVER_TIME = 10
"""Tests of one program that may run out of time. The rest is then not run, so that no program costs hours."""
NOT_RUN = f"not run, since {MAX_OVER_TIME} tests before took too long"


def is_too_slow(results: Iterable[TestResult]) -> bool:
    """True if so many tests ran out of time that the rest is not run; it counts as out of time too."""
    return sum(result.status in OVER_TIME for result in results) >= MAX_OVER_TIME


def require_tests(tests: object, limits: Limits) -> None:
    """Raise ValueError if there is no test, since a program without tests proves nothing, or if there are too many."""
    if not isinstance(tests, Sequence) or isinstance(tests, (str, bytes)):
        raise ValueError(f"tests must be a list of tests, got {type(tests).__name__}")
    if not tests:
        raise ValueError("tests is empty: a program without tests cannot pass; give at least one test")
    if len(tests) > limits.max_tests:
        raise ValueError(f"{len(tests)} tests exceed Limits.max_tests={limits.max_tests}; raise it or send fewer")
