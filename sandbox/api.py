"""The calls that most users need, on a pool of workers that starts with the first call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from verizero.pipeline.errors import IsolationError
from verizero.sandbox.isolation import Isolation
from verizero.sandbox.languages import LANGUAGES, require_tool, run_built
from verizero.sandbox.pool import Pool, default_pool
from verizero.sandbox.process import ERROR_CHARACTERS
from verizero.sandbox.results import (
    DEFAULT_LIMITS,
    Limits,
    Mode,
    RunResult,
    TestResult,
    Tests,
    Trial,
    limits_for,
    require_tests,
)
from verizero.sandbox.trial import cases, run_tests


def run(
    program: str,
    tests: Tests,
    *,
    mode: Mode = "stdin",
    limits: Limits = DEFAULT_LIMITS,
    stop_on_failure: bool = False,
    language: str = "python",
    pool: Pool | None = None,
) -> RunResult:
    """Return the program's result on its tests.

    In mode "stdin" the tests are {"input": text, "output": text}: the program reads standard input and prints. In mode
    "function" they are {"fn": name, "args": [...], "expected": value}: the program defines the function, or a class
    Solution with that method. With `stop_on_failure`, tests after the first that failed are left out. The call blocks,
    and any thread may make it.

    Raises: ValueError on an empty list of tests, a malformed one or an unknown language; IsolationError when the walls
    are too low, or the language's tool is not installed.
    """
    return _run_trial(Trial(program, tests, mode, limits, stop_on_failure, language), pool or default_pool())


def execute(program: str, stdin: str = "", *, limits: Limits = DEFAULT_LIMITS, pool: Pool | None = None) -> TestResult:
    """Run the program once on `stdin` and return its output. Status "passed" means that its exit code was 0."""
    test = {"input": stdin, "output": None}
    return run(program, [test], limits=limits, pool=pool).tests[0]


def run_many(trials: Iterable[Trial], *, pool: Pool | None = None) -> list[RunResult]:
    """Return one result per trial, in order; as many run at a time as the pool has workers.

    A trial that cannot be run, as one with malformed tests, has the status "sandbox_error" and its reason on every
    test, and touches no other.

    Raises: IsolationError when the walls are too low, or a language's tool is not installed.
    """
    trials = list(trials)
    pool_to_use = pool or default_pool()
    if not trials:
        return []
    for language in {trial.language for trial in trials} & LANGUAGES.keys():  # before a program runs
        require_tool(language)
    with ThreadPoolExecutor(min(pool_to_use.size, len(trials)), "sandbox") as threads:
        try:
            results = [threads.submit(_result, trial, pool_to_use) for trial in trials]
            return [result.result() for result in results]
        except BaseException:  # Ctrl-C, or walls that are too low: nobody waits for the others
            threads.shutdown(wait=False, cancel_futures=True)
            pool_to_use.interrupt()
            raise


def probe() -> Isolation:
    """Return the walls that hold on this machine and their level, also where no pool would start."""
    with Pool(workers=1, min_level=0) as single:
        return single.isolation


def _result(trial: Trial, pool: Pool) -> RunResult:
    try:
        return _run_trial(trial, pool)
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


def _run_trial(trial: Trial, pool: Pool) -> RunResult:
    if trial.language == "python":
        return run_tests(pool, trial)
    check(trial)
    return run_built(pool, trial)
