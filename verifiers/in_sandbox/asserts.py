"""Runs in the sandbox without the program: one test, whose calls are answered with recorded results of the program.

In this way the test, with its expected values, and the program never share a process.
"""

from __future__ import annotations

import builtins
import copy
import math
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Call = tuple[str, list[Any], dict[str, Any]]
"""Function, arguments, keyword arguments."""


class _Unknown(BaseException):
    """The test makes a call whose result is not known yet."""


def steps(tests: list[tuple[str, list[str], list[Any]]]) -> list[Any]:
    """Return the result of `step` for each test."""
    return [step(*test) for test in tests]


def step(test: str, names: list[str], known: list[Any]) -> Any:
    """Run the test with calls that return `known`, in order, and return how it ends.

    ("passed",); ("failed", message); ("broken", message) where the test itself is at fault before any call; or
    ("call", function, args, kwargs), the next call. `known` holds ("value", v, args, kwargs) with the arguments
    as the program left them, or ("raised", type names).
    """
    played = iter(known)
    asked: list[Call] = []

    def play(name: str) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            outcome = next(played, None)
            if outcome is None:
                asked.append((name, copy.deepcopy(list(args)), copy.deepcopy(kwargs)))
                raise _Unknown
            if outcome[0] == "raised":
                raise _exception(outcome[1])
            for mine, theirs in zip(args, outcome[2], strict=True):
                _become(mine, theirs)
            for key, theirs in outcome[3].items():
                _become(kwargs[key], theirs)
            return copy.deepcopy(outcome[1])

        return function

    sys.modules["pytest"] = _pytest()
    space: dict[str, Any] = {"__name__": "test", **{name: play(name) for name in names}}
    end: tuple[Any, ...] = ("passed",) if known else ("broken", "the test calls none of the program's functions")
    try:
        exec(compile(test, "test", "exec"), space)
    except AssertionError as exc:
        end = ("failed", f"assertion: {exc}"[:200])
    except BaseException as exc:
        end = ("failed" if known else "broken", f"{type(exc).__name__}: {exc}"[:200])
    return ("call", *asked[0]) if asked else end


class _Raises:
    """`pytest.raises(kind, match=...)` as a context manager."""

    def __init__(self, kind: type[BaseException] | tuple[type[BaseException], ...], match: str | None = None) -> None:
        self.kind, self.match, self.value = kind, match, None

    def __enter__(self) -> _Raises:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: Any) -> bool:
        if kind is None:
            raise AssertionError(f"did not raise {self.kind}")
        return issubclass(kind, self.kind) and (self.match is None or bool(re.search(self.match, str(value))))


class _Approx:
    """`pytest.approx(expected, rel=1e-6, abs=1e-12)` for numbers, and sequences and mappings of them."""

    def __init__(self, expected: Any, rel: float = 1e-6, abs: float = 1e-12) -> None:
        self.expected, self.rel, self.abs = expected, rel, abs

    def __eq__(self, got: Any) -> bool:
        return self._near(got, self.expected)

    __hash__ = None  # type: ignore[assignment]

    def _near(self, got: Any, wanted: Any) -> bool:
        if isinstance(wanted, dict):
            return (
                isinstance(got, dict)
                and got.keys() == wanted.keys()
                and all(self._near(got[k], wanted[k]) for k in got)
            )
        if isinstance(wanted, list | tuple):
            same = type(got) is type(wanted) and len(got) == len(wanted)
            return same and all(self._near(g, w) for g, w in zip(got, wanted, strict=True))
        if isinstance(got, bool) or isinstance(wanted, bool) or not isinstance(got, int | float):
            return bool(got == wanted)
        return math.isclose(got, wanted, rel_tol=self.rel, abs_tol=self.abs)


def _parametrize(names: str | Sequence[str], cases: Sequence[Any]) -> Callable[[Any], Any]:
    """`pytest.mark.parametrize`: the test, called without arguments, runs all its cases."""
    keys = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)

    def mark(test: Callable[..., Any]) -> Callable[..., None]:
        def run_all(**outer: Any) -> None:
            for case in cases:
                test(**outer, **dict(zip(keys, [case] if len(keys) == 1 else case, strict=True)))

        return run_all

    return mark


def _pytest() -> ModuleType:
    """Return the part of pytest that asserts use; the sandbox has the standard library only."""
    module = ModuleType("pytest")
    marks = ModuleType("pytest.mark")
    vars(marks).update(parametrize=_parametrize)
    vars(module).update(raises=_Raises, approx=_Approx, mark=marks)
    return module


def _become(mine: Any, theirs: Any) -> None:
    """Change a list, dict or set here as the program changed it in place."""
    if type(mine) is not type(theirs) or mine == theirs:
        return
    if isinstance(mine, list):
        mine[:] = theirs
    elif isinstance(mine, dict | set):
        mine.clear()
        mine.update(theirs)


def _exception(names: list[str]) -> BaseException:
    """Return an exception of the nearest built-in type to the program's."""
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind("raised by the program")
            except TypeError:
                continue
    return Exception("raised by the program")
