"""The part of pytest that tests of programs use, since the sandbox has the standard library only."""

from __future__ import annotations

import io
import math
import numbers
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Skipped(BaseException):
    """The test skips itself."""


class _Raises:
    """`pytest.raises(kind, match=...)`: a context manager, and what it has caught."""

    def __init__(self, kind: Any, match: Any = None) -> None:
        self.expected, self.pattern = kind, match
        self.value: Any = None
        self.type: Any = None
        self.tb: Any = None

    def match(self, pattern: str) -> bool:
        """True if the caught exception's text has a match. Raises: AssertionError."""
        assert re.search(pattern, str(self.value)), f"{pattern!r} does not match {str(self.value)!r}"
        return True

    def __enter__(self) -> _Raises:
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        if kind is None:
            raise AssertionError(f"did not raise {_name(self.expected)}")
        if not issubclass(kind, self.expected):
            return False
        self.type, self.value, self.tb = kind, value, trace
        if self.pattern is not None:
            self.match(self.pattern)
        return True


def _name(kind: Any) -> str:
    return ", ".join(map(_name, kind)) if isinstance(kind, tuple) else getattr(kind, "__name__", str(kind))


def raises(expected_exception: Any, *args: Any, match: Any = None, **kwargs: Any) -> _Raises:
    """`pytest.raises`, as a context manager or with a function to call."""
    caught = _Raises(expected_exception, match)
    if args:
        with caught:
            args[0](*args[1:], **kwargs)
    return caught


class _Approx:
    """`pytest.approx(expected, rel=1e-6, abs=1e-12)` for numbers, and sequences and mappings of them."""

    def __init__(self, expected: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False) -> None:
        self.expected, self.nan_ok = expected, nan_ok
        self.rel = rel if rel is not None else (0.0 if abs is not None else 1e-6)
        self.abs = abs if abs is not None else 1e-12

    def __eq__(self, got: object) -> bool:
        return self._near(got, self.expected)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"approx({self.expected!r})"

    def _near(self, got: Any, wanted: Any) -> bool:
        if isinstance(wanted, Mapping):
            if not isinstance(got, Mapping) or got.keys() != wanted.keys():
                return False
            return all(self._near(got[k], wanted[k]) for k in wanted)
        if isinstance(wanted, (list, tuple)):
            same = isinstance(got, (list, tuple)) and len(got) == len(wanted)
            return same and all(self._near(g, w) for g, w in zip(got, wanted, strict=True))
        if isinstance(got, (bool, str, bytes)) or isinstance(wanted, bool) or not _is_number(wanted):
            return bool(got == wanted)
        if not _is_number(got):
            return False
        if got == wanted or (self.nan_ok and got != got and wanted != wanted):
            return True
        if not (math.isfinite(abs(got)) and math.isfinite(abs(wanted))):
            return False
        is_binary = isinstance(wanted, (int, float, complex))
        rel, least = (self.rel, self.abs) if is_binary else (type(wanted)(self.rel), type(wanted)(self.abs))
        return bool(abs(got - wanted) <= max(rel * abs(wanted), least))


def _is_number(x: Any) -> bool:
    return isinstance(x, numbers.Number)


class _Marks:
    """`pytest.mark`: parametrize means something, all others nothing."""

    def __getattr__(self, name: str) -> Any:
        def mark(*args: Any, **kwargs: Any) -> Any:
            is_bare = len(args) == 1 and not kwargs and isinstance(args[0], (type, types.FunctionType))
            return args[0] if is_bare else lambda test: test

        return mark

    @staticmethod
    def parametrize(names: str | Sequence[str], cases: Any, **_: Any) -> Callable[[Any], Any]:
        """`pytest.mark.parametrize`: the test runs once for each case, all in one test."""
        keys = [n.strip() for n in names.split(",") if n.strip()] if isinstance(names, str) else list(names)
        values = [(c,) if len(keys) == 1 else tuple(c) for c in cases]

        def mark(test: Any) -> Any:
            test._verizero_cases = [*getattr(test, "_verizero_cases", []), (keys, values)]
            return test

        return mark


def _fail(reason: str = "", **_: Any) -> None:
    raise AssertionError(reason or "pytest.fail")


def module() -> types.ModuleType:
    """Return a module `pytest`."""
    new = types.ModuleType("pytest")
    vars(new).update(raises=raises, approx=_Approx, mark=_Marks(), fail=_fail, main=lambda *_, **__: 0)
    return new


class _Captured(NamedTuple):
    out: str
    err: str


class _CapSys:
    """`capsys`: what the test and the program print."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self.streams = io.StringIO(), io.StringIO()
        sys.stdout, sys.stderr = self.streams

    def readouterr(self) -> _Captured:
        """Return what was printed since the last call."""
        captured = _Captured(*(s.getvalue() for s in self.streams))
        self._renew()
        return captured


def call(space: dict[str, Any], path: str) -> None:
    """Call a test function, or a method of a test class, once for each of its cases."""
    name, _, method = path.partition(".")
    owner: Any = space[name]
    unittest: Any = sys.modules.get("unittest")
    is_case = bool(method) and unittest is not None and issubclass(owner, unittest.TestCase)
    if is_case:
        if callable(space.get("setUpModule")):
            space["setUpModule"]()
        try:
            owner.setUpClass()
            owner(method).debug()
            owner.tearDownClass()
        except unittest.SkipTest as exc:
            raise Skipped(str(exc)) from exc
        return
    function = getattr(owner(), method) if method else owner
    code = getattr(function, "__func__", function).__code__
    for values in _cases([c for x in (function, owner) for c in getattr(x, "_verizero_cases", ())]):
        function(**values, **({"capsys": _CapSys()} if "capsys" in code.co_varnames[: code.co_argcount] else {}))


def _cases(marks: Sequence[tuple[list[str], list[tuple[Any, ...]]]]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each case: the product of all `parametrize`."""
    if not marks:
        yield {}
        return
    keys, values = marks[0]
    for rest in _cases(marks[1:]):
        for case in values:
            yield {**rest, **dict(zip(keys, case, strict=True))}
