"""The part of pytest that tests of programs use, since the sandbox has the standard library only."""

from __future__ import annotations

import math
import numbers
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .fixtures import Fixture, Fixtures, fixture, parameters
from .suite_port import TestsPort


class Skipped(BaseException):
    """The test skips itself."""


class _Raises:
    """`pytest.raises(kind, match=...)`: a context manager, and what it has caught."""

    def __init__(self, kind: Any, match: Any = None) -> None:
        self.expected, self.pattern = kind, match
        self.value: Any = None
        self.type: Any = None
        self.tb: Any = None

    @property
    def typename(self) -> str:
        """The name of the caught exception's class."""
        return str(self.type.__name__)

    def match(self, pattern: str) -> bool:
        """True if the caught exception's text has a match. Raises: AssertionError."""
        assert re.search(pattern, str(self.value)), f"{pattern!r} does not match {str(self.value)!r}"
        return True

    def exconly(self, tryshort: bool = False) -> str:
        """The class and the text of the caught exception."""
        return f"{self.typename}: {self.value}"

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
        if isinstance(wanted, complex) or isinstance(got, complex):
            return bool(abs(got - wanted) <= max(self.rel * abs(wanted), self.abs))
        tolerance = max(
            type(wanted)(self.rel) * abs(wanted) if self.rel else 0, type(wanted)(self.abs) if self.abs else 0
        )
        return bool(abs(got - wanted) <= (max(self.rel * abs(wanted), self.abs) if _is_binary(wanted) else tolerance))


def _is_binary(x: Any) -> bool:
    return isinstance(x, (int, float))


def _is_number(x: Any) -> bool:
    return isinstance(x, numbers.Number)


class _Marks:
    """`pytest.mark`: parametrize and skip mean something, all others nothing."""

    def __getattr__(self, name: str) -> Any:
        def mark(*args: Any, **kwargs: Any) -> Any:
            is_bare = len(args) == 1 and not kwargs and isinstance(args[0], (type, types.FunctionType))
            return args[0] if is_bare else lambda test: test

        return mark

    @staticmethod
    def parametrize(names: str | Sequence[str], cases: Any, **_: Any) -> Callable[[Any], Any]:
        """`pytest.mark.parametrize`: the test runs once for each case, all in one test."""
        keys = [n.strip() for n in names.split(",") if n.strip()] if isinstance(names, str) else list(names)
        values = [c.values if isinstance(c, Param) else (c,) if len(keys) == 1 else tuple(c) for c in cases]
        return _add_mark("_verizero_cases", (keys, values))

    @staticmethod
    def skip(*args: Any, reason: str = "") -> Any:
        """`pytest.mark.skip`."""
        return (
            _add_mark("_verizero_skips", reason)(args[0])
            if args and callable(args[0])
            else _add_mark("_verizero_skips", reason)
        )

    @staticmethod
    def skipif(condition: Any, *_: Any, reason: str = "") -> Any:
        """`pytest.mark.skipif`."""
        return (
            _add_mark("_verizero_skips", reason) if condition and not isinstance(condition, str) else lambda test: test
        )

    @staticmethod
    def usefixtures(*names: str) -> Any:
        """`pytest.mark.usefixtures`."""
        return _add_mark("_verizero_uses", names)


def _add_mark(name: str, value: Any) -> Callable[[Any], Any]:
    def mark(test: Any) -> Any:
        setattr(test, name, [*getattr(test, name, []), value])
        return test

    return mark


class Param:
    """`pytest.param`."""

    def __init__(self, *values: Any, **_: Any) -> None:
        self.values = values


def _skip(reason: str = "", **_: Any) -> None:
    raise Skipped(reason)


def _fail(reason: str = "", **_: Any) -> None:
    raise AssertionError(reason or "pytest.fail")


def _importorskip(name: str, *_: Any, **__: Any) -> Any:
    try:
        return __import__(name)
    except ImportError as exc:
        raise Skipped(f"needs {name}") from exc


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ModuleNotFoundError(f"pytest.{name} is not in the sandbox", name="pytest")


def module() -> types.ModuleType:
    """Return a module `pytest`."""
    new = _Module("pytest")
    vars(new).update(
        raises=raises, approx=_Approx, mark=_Marks(), fixture=fixture, param=Param, skip=_skip, fail=_fail,
        importorskip=_importorskip, main=lambda *_, **__: 0, MonkeyPatch=object, CaptureFixture=object,
    )  # fmt: skip
    return new


def call(space: dict[str, Any], path: str, port: TestsPort) -> None:
    """Call a test function, or a method of a test class, once for each of its cases."""
    name, _, method = path.partition(".")
    owner = space[name]
    if method and isinstance(owner, type) and "unittest" in sys.modules:
        case = sys.modules["unittest"].TestCase
        if issubclass(owner, case):
            _call_unittest(space, owner, method)
            return
    instance = owner() if method else None
    function = getattr(instance, method) if method else owner
    marked = [function, owner]
    if reasons := [r for x in marked for r in getattr(x, "_verizero_skips", ())]:
        raise Skipped(str(reasons[0]))
    uses = [n for x in marked for names in getattr(x, "_verizero_uses", ()) for n in names]
    for case_values in _cases([c for x in marked for c in getattr(x, "_verizero_cases", ())]):
        with Fixtures(space, port, instance) as fixtures:
            _set_up(space, instance, method, function)
            try:
                for unused in (*fixtures.automatic(), *uses):
                    fixtures.value(unused)
                wanted = [n for n in parameters(function) if n not in case_values]
                result = function(**case_values, **{n: fixtures.value(n) for n in wanted})
                if isinstance(result, types.CoroutineType):
                    import asyncio

                    asyncio.run(result)
            finally:
                _call_if_there(instance, "teardown_method", function)
                _call_if_there(instance, "tearDown")


def _set_up(space: dict[str, Any], instance: Any, method: str, function: Any) -> None:
    _call_if_there(types.SimpleNamespace(**{k: v for k, v in space.items() if k.startswith("setup_")}), "setup_module")
    if instance is None:
        if callable(space.get("setup_function")):
            space["setup_function"](*([function] if parameters(space["setup_function"]) else []))
        return
    _call_if_there(type(instance), "setup_class")
    _call_if_there(instance, "setup_method", function)
    _call_if_there(instance, "setUp")


def _call_if_there(owner: Any, name: str, *args: Any) -> None:
    method = getattr(owner, name, None)
    if owner is not None and callable(method) and not isinstance(method, Fixture):
        method(*(args if parameters(method) else ()))


def _cases(marks: Sequence[tuple[list[str], list[tuple[Any, ...]]]]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each case: the product of all `parametrize`."""
    if not marks:
        yield {}
        return
    keys, values = marks[0]
    for rest in _cases(marks[1:]):
        for case in values:
            yield {**rest, **dict(zip(keys, case, strict=True))}


def _call_unittest(space: dict[str, Any], owner: Any, method: str) -> None:
    """Run one method of a unittest.TestCase as its runner does, but let what it raises pass."""
    case = owner(method)
    skip = sys.modules["unittest"].SkipTest
    test = getattr(case, method)
    for marked in (owner, test):
        if getattr(marked, "__unittest_skip__", False):
            raise Skipped(str(getattr(marked, "__unittest_skip_why__", "")))
    try:
        if callable(space.get("setUpModule")):
            space["setUpModule"]()
        owner.setUpClass()
        case.setUp()
        try:
            result = test()
            if isinstance(result, types.CoroutineType):
                import asyncio

                asyncio.run(result)
        finally:
            case.tearDown()
            _do_cleanups(case)
            owner.tearDownClass()
    except skip as exc:
        raise Skipped(str(exc)) from exc


def _do_cleanups(case: Any) -> None:
    while case._cleanups:
        function, args, kwargs = case._cleanups.pop()
        function(*args, **kwargs)
