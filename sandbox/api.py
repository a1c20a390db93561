"""The calls that most users need, on a pool of workers that starts with the first call."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from verizero.pipeline.errors import IsolationError
from verizero.sandbox.isolation import WALLS, Isolation
from verizero.sandbox.languages import run_language
from verizero.sandbox.pool import Pool
from verizero.sandbox.process import ERROR_CHARACTERS
from verizero.sandbox.results import Limits, Mode, RunResult, TestResult, limits_for, require_tests
from verizero.sandbox.trial import cases, run_tests, run_with_checker

Tests = Sequence[Mapping[str, Any]]
_DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Trial:
    """A program with its tests, for `run_many`."""

    program: str
    tests: Tests
    mode: Mode = "stdin"
    limits: Limits = _DEFAULT_LIMITS
    stop_on_failure: bool = False
    language: str = "python"
    """Languages other than Python (`sandbox.available()` names them) take stdin tests, each in a new process."""
    values: bool = False
    """True to have a service send back the returned values. Results of this machine always have them."""


_lock = threading.Lock()
_pool: Pool | None = None


def default_pool() -> Pool:
    """Return the pool that calls use by default. It is made on first use and closed at exit."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = Pool()
        return _pool


def configure(
    workers: int | None = None, min_level: int = 2, walls: Iterable[str] = WALLS, packages: Iterable[str] = (),
    python: str | None = None,
) -> Pool:  # fmt: skip
    """Return a new default pool with these settings, and close the former one. Raises: ValueError; ConfigError."""
    global _pool
    new_pool = Pool(workers, min_level, walls, packages=packages, python=python)
    with _lock:
        old_pool, _pool = _pool, new_pool
    if old_pool is not None:
        old_pool.close()
    return new_pool


def shutdown() -> None:
    """Close the default pool; the next call makes a new one."""
    global _pool
    with _lock:
        old_pool, _pool = _pool, None
    if old_pool is not None:
        old_pool.close()


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
    """Return the program's result on its tests.

    In mode "stdin" the tests are {"input": text, "output": text}: the program reads standard input and prints. In mode
    "function" they are {"fn": name, "args": [...], "expected": value}: the program defines the function, or a class
    Solution with that method. With `stop_on_failure`, tests after the first that failed are left out. `checker` is the
    text of a program with check(input, output, expected), for tests with more than one right output; it runs in a
    process of its own. The call blocks, and any thread may make it.

    Raises: ValueError on an empty list of tests or a malformed one; IsolationError when the walls are too low.
    """
    if checker is not None:
        return run_with_checker(pool or default_pool(), program, tests, mode, limits, checker)
    return run_tests(pool or default_pool(), program, tests, mode, limits, stop_on_failure)


def execute(program: str, stdin: str = "", *, limits: Limits = _DEFAULT_LIMITS, pool: Pool | None = None) -> TestResult:
    """Run the program once on `stdin` and return its output. Status "passed" means that its exit code was 0."""
    test = {"input": stdin, "output": None}
    return run_tests(pool or default_pool(), program, [test], "stdin", limits, False).tests[0]


def run_many(trials: Iterable[Trial], *, pool: Pool | None = None, tools: Pool | None = None) -> list[RunResult]:
    """Return one result per trial, in order; as many run at a time as the pool has workers.

    `tools` is the pool for languages other than Python. A trial that cannot be run, as one with malformed tests, has
    the status "sandbox_error" and its reason on every test, and touches no other.

    Raises: IsolationError when the walls are too low.
    """
    trials = list(trials)
    pool_to_use = pool or default_pool()
    if not trials:
        return []
    with ThreadPoolExecutor(min(pool_to_use.size, len(trials)), "sandbox") as threads:
        try:
            results = [threads.submit(_result, trial, pool_to_use, tools) for trial in trials]
            return [result.result() for result in results]
        except BaseException:  # Ctrl-C, or walls that are too low: nobody waits for the others
            threads.shutdown(wait=False, cancel_futures=True)
            for each in (pool_to_use, tools):
                if each is not None:
                    each.interrupt()
            raise


def probe(pool: Pool | None = None) -> Isolation:
    """Return the walls that hold on this machine and their level, also where no pool would start."""
    if pool is not None:
        return pool.isolation
    with Pool(workers=1, min_level=0) as single:
        return single.isolation


def _result(trial: Trial, pool: Pool, tools: Pool | None) -> RunResult:
    try:
        return _run_trial(trial, pool, tools)
    except IsolationError:
        raise
    except Exception as exc:
        return refused(trial, exc)


def refused(trial: Trial, exc: Exception) -> RunResult:
    """Return the result of a trial that cannot be run, with the exception as its reason on every test."""
    count = len(trial.tests) if isinstance(trial.tests, Sequence) else 0
    return RunResult.failed(f"{type(exc).__name__}: {exc}"[-ERROR_CHARACTERS:], max(1, count), 0)


def check(trial: Trial) -> None:
    """Raise ValueError if no sandbox could run the trial: tests malformed or too large, or of a mode of Python only."""
    require_tests(trial.tests, trial.limits)
    if trial.language != "python" and trial.mode != "stdin":
        raise ValueError(f"mode {trial.mode!r} calls Python; for {trial.language} give stdin tests")
    limits_for(cases(trial.tests, trial.mode), trial.limits)


def _run_trial(trial: Trial, pool: Pool, tools: Pool | None) -> RunResult:
    if trial.language != "python":
        check(trial)
        return run_language(
            trial.language,
            trial.program,
            trial.tests,
            limits=trial.limits,
            stop_on_failure=trial.stop_on_failure,
            pool=tools,
        )
    return run_tests(pool, trial.program, trial.tests, trial.mode, trial.limits, trial.stop_on_failure)
