"""The calls that most users need, on a pool of workers that starts with the first of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sandbox.check import run_with_checker
from sandbox.isolation import WALLS, Isolation
from sandbox.languages import run_language
from sandbox.pool import Pool
from sandbox.results import Limits, Mode, RunResult, TestResult
from sandbox.trial import run_tests

Tests = Sequence[Mapping[str, Any]]
_DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Trial:
    """One program with its tests, for `run_many`."""

    program: str
    tests: Tests
    mode: Mode = "stdin"
    limits: Limits = _DEFAULT_LIMITS
    stop_on_failure: bool = False
    language: str = "python"
    """Others (`sandbox.available()` names them) take stdin tests and run them all, each in a new process."""
    values: bool = False
    """Have a service send back what functions returned; on this machine results always hold it."""


_lock = threading.Lock()
_pool: Pool | None = None


def default_pool() -> Pool:
    """The pool that is used when none is given; made on first use, closed at exit."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = Pool()
        return _pool


def configure(workers: int | None = None, min_level: int = 2, walls: Iterable[str] = WALLS) -> Pool:
    """The default pool, made anew with these settings; the former one is closed."""
    global _pool
    fresh = Pool(workers, min_level, walls)
    with _lock:
        former, _pool = _pool, fresh
    if former is not None:
        former.close()
    return fresh


def shutdown() -> None:
    """Close the default pool; the next call makes a new one."""
    global _pool
    with _lock:
        former, _pool = _pool, None
    if former is not None:
        former.close()


def run(
    program: str,
    tests: Tests,
    *,
    mode: Mode = "stdin",
    limits: Limits = _DEFAULT_LIMITS,
    stop_on_failure: bool = False,
    checker: str | None = None,
    pool: Pool | None = None,
) -> RunResult:
    """The program's result on its tests.

    mode "stdin": tests are {"input": text, "output": text}, and the program reads standard input and prints. mode
    "function": tests are {"fn": name, "args": [...], "expected": value}; the program defines the function, or a class
    Solution with that method. With `stop_on_failure`, tests after the first that failed are left out. Blocks; safe
    from any thread. `checker` is the text of a program with check(input, output, expected), for tests that have more
    than one right output; it runs in a process of its own.

    Raises: ValueError on an empty list of tests or a malformed one; IsolationError when the walls are too low.
    """
    if checker is not None:
        return run_with_checker(pool or default_pool(), program, tests, mode, limits, checker)
    return run_tests(pool or default_pool(), program, tests, mode, limits, stop_on_failure)


def execute(program: str, stdin: str = "", *, limits: Limits = _DEFAULT_LIMITS, pool: Pool | None = None) -> TestResult:
    """What the program printed when run once on `stdin`; status "passed" says that it ended well, exit code 0."""
    test = {"input": stdin, "output": None}
    return run_tests(pool or default_pool(), program, [test], "stdin", limits, False).tests[0]


def run_many(trials: Iterable[Trial], *, pool: Pool | None = None, tools: Pool | None = None) -> list[RunResult]:
    """One result per trial, in order, as many at a time as the pool has workers. `tools`: a pool for other languages.

    Raises: as `run` and `run_language`, for the first.
    """
    trials = list(trials)
    used = pool or default_pool()
    if not trials:
        return []
    with ThreadPoolExecutor(min(used.size, len(trials)), "sandbox") as threads:
        return list(threads.map(lambda trial: _run_trial(trial, used, tools), trials))


async def run_async(
    program: str,
    tests: Tests,
    *,
    mode: Mode = "stdin",
    limits: Limits = _DEFAULT_LIMITS,
    stop_on_failure: bool = False,
    pool: Pool | None = None,
) -> RunResult:
    """`run`, without blocking the event loop."""
    trial = Trial(program, tests, mode, limits, stop_on_failure)
    return (await run_many_async([trial], pool=pool))[0]


async def run_many_async(trials: Iterable[Trial], *, pool: Pool | None = None) -> list[RunResult]:
    """`run_many`, without blocking the event loop."""
    return await asyncio.to_thread(run_many, list(trials), pool=pool)


def probe(pool: Pool | None = None) -> Isolation:
    """The walls that stand on this machine and the level they amount to, at whatever level that is."""
    if pool is not None:
        return pool.isolation
    with Pool(workers=1, min_level=0) as trial:
        return trial.isolation


def _run_trial(trial: Trial, pool: Pool, tools: Pool | None) -> RunResult:
    if trial.language != "python":
        if trial.mode != "stdin":
            raise ValueError(f"mode {trial.mode!r} calls Python; for {trial.language} give stdin tests")
        return run_language(trial.language, trial.program, trial.tests, limits=trial.limits, pool=tools)
    return run_tests(pool, trial.program, trial.tests, trial.mode, trial.limits, trial.stop_on_failure)
