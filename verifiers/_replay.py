"""Check asserts in pytest's style against a program that never sees them.

A test runs in a sandbox of its own, where each call of the program's function is answered from what the program, run in
another, returned for those arguments. Neither can reach the other: only plain values travel.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.sandbox.worker.codec import Opaque, Unhashed
from verizero.verifiers._sandbox_jobs import Job, Outcome, Ran, Run, run_or_fail

HERE = Path(__file__).parent
STEP = (HERE / "in_sandbox" / "asserts.py").read_text()
CALLS = (HERE / "in_sandbox" / "calls.py").read_text()
MAX_CALLS = 64
"""Maximum of calls of the program in a test."""


@dataclass(frozen=True, slots=True)
class AssertSuite:
    """The tests of a reference, each as Python source, and the functions of the program that they call."""

    tests: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(slots=True)
class Replay:
    """The state of a program in a suite: for each test its calls so far, their results, and its end."""

    program: str
    suite: AssertSuite
    stop: bool = False
    """True to skip the tests after the first failure."""
    alone: bool = False
    """True if each test has a process of its own."""
    calls: list[list[tuple[Any, ...]]] = field(default_factory=list)
    known: list[list[Any]] = field(default_factory=list)
    ends: list[str | None] = field(default_factory=list)
    failure: Outcome | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for held in (self.calls, self.known):
            held.extend([] for _ in self.suite.tests)
        self.ends.extend(None for _ in self.suite.tests)

    def open_tests(self) -> list[int]:
        """Return the tests that have no end yet."""
        if self.failure or (self.stop and any(end not in (None, "passed") for end in self.ends)):
            return []
        return [i for i, end in enumerate(self.ends) if end is None]


@lru_cache(maxsize=4096)
def assert_suite_of(source: str, setup: str, fn: str | None) -> AssertSuite:
    """Return the tests in a source: each top-level assert, each `test_...` function, each assert of `check(candidate)`.

    Each test keeps the imports, data and definitions before it.
    Raises: DataError if the source is no Python or holds no test.
    """
    try:
        tree = ast.parse(source)
        ast.parse(setup)
    except (SyntaxError, ValueError) as exc:
        raise DataError(f"reference.tests: not Python: {exc}") from exc
    prelude: list[ast.stmt] = []
    tests: list[list[ast.stmt]] = []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test"):
            tests.append([*prelude, statement, ast.parse(f"{statement.name}()").body[0]])
        elif isinstance(statement, ast.FunctionDef) and statement.name == "check" and len(statement.args.args) == 1:
            candidate = ast.parse(f"{statement.args.args[0].arg} = {_required(fn)}").body
            flat = any(isinstance(s, ast.Assert) for s in statement.body)
            call = ast.parse(f"check({fn})").body[0]
            tests += _asserts(statement.body, [*prelude, *candidate]) if flat else [[*prelude, statement, call]]
        elif isinstance(statement, ast.Assert):
            tests.append([*prelude, statement])
        elif not _is_main_guard(statement) and not _is_check_call(statement):
            prelude.append(statement)
    if not tests:
        raise DataError("reference.tests: no assert, no test_ function and no check(candidate) in it")
    texts = tuple(setup + "\n" + ast.unparse(ast.Module(body=body, type_ignores=[])) for body in tests)
    names = (fn,) if fn else _undefined(ast.parse(setup + "\n" + source))
    if not names:
        raise DataError("reference.tests: they call nothing of the program; name its function in reference.fn")
    return AssertSuite(texts, tuple(names))


def replay(work: Sequence[tuple[str, AssertSuite]], run: Run, stop: bool = False) -> list[Replay]:
    """Run all programs through their suites together: tests run until they need a call, then programs make the calls.

    Tests of one program share a process as long as all pass; a test that failed in a shared process is tried again
    alone, so that state kept between calls does not count against a program. With `stop`, tests after the first that
    does not pass have no end.
    """
    replays = [Replay(program, suite, stop) for program, suite in work]
    tried: set[tuple[int, int]] = set()
    while True:
        _advance(replays, run)
        failed = [(k, i) for k, r in enumerate(replays) for i in _failed_in_shared(r) if (k, i) not in tried]
        if not failed:
            return replays
        tried.update(failed)
        again = [
            Replay(r.program, AssertSuite((r.suite.tests[i],), r.suite.names)) for k, i in failed for r in [replays[k]]
        ]
        _advance(again, run)
        for (k, i), once in zip(failed, again, strict=True):
            r = replays[k]
            r.ends[i], r.seconds, r.failure = once.ends[0], r.seconds + once.seconds, r.failure or once.failure


def _failed_in_shared(r: Replay) -> list[int]:
    if r.failure is not None or len(r.ends) == 1 or r.alone:
        return []
    return [i for i, end in enumerate(r.ends) if end is not None and end.startswith("failed")]


def _advance(replays: Sequence[Replay], run: Run) -> None:
    """Run every replay to its end."""
    for _ in range(MAX_CALLS + 1):
        active = [r for r in replays if r.open_tests()]
        if not active:
            return
        _step_tests(active, run)
        _answer_calls([r for r in active if r.open_tests()], run)
    for r in replays:
        for i in r.open_tests():
            r.ends[i] = f"broken: more than {MAX_CALLS} calls"


def _step_tests(active: Sequence[Replay], run: Run) -> None:
    def job(r: Replay, tests: Sequence[int]) -> Job:
        states = [[r.suite.tests[i], list(r.suite.names), r.known[i]] for i in tests]
        return Job(STEP, (_function("steps", states),), "function", needs_values=True)

    for r, i, test in _each(active, job, run):
        step = test.value
        if not isinstance(step, tuple | list) or not step:
            # Before its first call a test is at fault itself. Later it holds what the program returned.
            r.ends[i] = "timeout" if test.is_over_budget else f"{'failed' if r.known[i] else 'broken'}: {test.status}"
        elif step[0] == "call":
            r.calls[i].append((step[1], step[2], step[3]))
        else:
            r.ends[i] = step[0] if step[0] == "passed" else f"{step[0]}: {step[1]}"


def _answer_calls(active: Sequence[Replay], run: Run) -> None:
    def job(r: Replay, tests: Sequence[int]) -> Job:
        calls = [r.calls[i] for i in tests]
        return Job(f"{r.program}\n\n{CALLS}", (_function("verizero_calls", calls),), "function", needs_values=True)

    for r, i, test in _each(active, job, run):
        problem = _problem(test.value, len(r.calls[i]))
        if problem is None:
            r.known[i] = list(test.value)
        elif test.is_over_budget:
            r.ends[i] = "timeout"
        else:
            r.ends[i] = f"failed: {test.status if test.value is None else problem}"


def _each(
    active: Sequence[Replay], job: Callable[[Replay, Sequence[int]], Job], run: Run
) -> Iterator[tuple[Replay, int, Ran]]:
    """Yield every open test with its result. The tests of a replay share a process; if it fails, each gets its own."""
    parts = [(r, some) for r in active for some in ([[i] for i in r.open_tests()] if r.alone else [r.open_tests()])]
    again: list[tuple[Replay, list[int]]] = []
    for (r, tests), ran in zip(parts, _values(parts, job, run), strict=True):
        if ran is None and len(tests) > 1:
            r.alone = True
            again += [(r, [i]) for i in (tests[:1] if r.stop else tests)]
        yield from ((r, i, test) for i, test in zip(tests, ran or [], strict=False))
    for (r, tests), ran in zip(again, _values(again, job, run), strict=True):
        yield from ((r, i, test) for i, test in zip(tests, ran or [], strict=False))


def _values(
    parts: Sequence[tuple[Replay, list[int]]], job: Callable[[Replay, Sequence[int]], Job], run: Run
) -> list[list[Ran] | None]:
    """Return the results of the tests of each part; None if several shared a process that did not finish."""
    made: list[list[Ran] | None] = []
    for (r, tests), outcome in zip(parts, run_or_fail([job(r, tests) for r, tests in parts], run), strict=True):
        r.seconds += outcome.seconds
        if outcome.status == "sandbox_error":
            r.failure = outcome
            made.append([])
            continue
        values = outcome.tests[0].value
        if isinstance(values, list) and len(values) == len(tests):
            made.append([Ran("passed", "", value) for value in values])
        else:
            made.append([Ran(outcome.tests[0].status)] if len(tests) == 1 else None)
    return made


def _problem(results: Any, num_calls: int) -> str | None:
    """Return why the results cannot be used, else None. The program may have forged them."""
    if not isinstance(results, list) or len(results) != num_calls:
        return "no_result"
    for result in results:
        match result:
            case ("raised", list(names)) if all(isinstance(n, str) for n in names):
                pass
            case ("value", _, list(), dict()):
                pass
            case _:
                return "bad_result"
        if _holds_opaque(result):
            return "opaque_value: an object that is no plain value was returned"
    return None


def _holds_opaque(value: Any) -> bool:
    if isinstance(value, Opaque):
        return True
    items = (x for pair in value.items() for x in pair) if isinstance(value, dict) else value
    return isinstance(value, dict | list | tuple | Unhashed) and any(map(_holds_opaque, items))


def _function(fn: str, args: Sequence[Any]) -> dict[str, Any]:
    return {"fn": fn, "args": [list(args)], "expected": None}


def _asserts(body: Sequence[ast.stmt], before: list[ast.stmt]) -> list[list[ast.stmt]]:
    tests, prelude = [], list(before)
    for statement in body:
        if isinstance(statement, ast.Assert):
            tests.append([*prelude, statement])
        else:
            prelude.append(statement)
    if (
        prelude
        and not isinstance(body[-1], ast.Assert)
        and any(isinstance(n, ast.Assert) for s in body for n in ast.walk(s))
    ):
        tests.append(prelude)
    return tests


def _undefined(tree: ast.Module) -> tuple[str, ...]:
    """Names that are called but neither defined in the tests nor built in, in order."""
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    stored |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    stored |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            stored |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    called = [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    loaded = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return tuple(dict.fromkeys(n for n in called + loaded if n not in stored and not hasattr(builtins, n)))


def _required(fn: str | None) -> str:
    if fn is None or not fn.isidentifier():
        raise DataError(f"reference.fn: check(candidate) needs the function's name, got {fn!r}")
    return fn


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _is_check_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("check(")
