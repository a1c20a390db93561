"""Fixtures of tests: those that a test file defines, and the simple ones of pytest."""

from __future__ import annotations

import io
import os
import sys
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from .mirrors import ref_of
from .suite_port import TestsPort


class Fixture:
    """A function that `pytest.fixture` marks."""

    def __init__(self, function: Callable[..., Any], autouse: bool, name: str | None, params: Any) -> None:
        self.function, self.autouse, self.params = function, autouse, params
        self.name = name or function.__name__

    def __get__(self, instance: Any, owner: Any) -> Any:
        return (
            self if instance is None else Fixture(self.function.__get__(instance), self.autouse, self.name, self.params)
        )


def fixture(
    function: Any = None, *, autouse: bool = False, name: str | None = None, params: Any = None, **_: Any
) -> Any:
    """`pytest.fixture`; each test has its own, whatever its scope."""
    if function is None:
        return lambda marked: Fixture(marked, autouse, name, params)
    return Fixture(function, autouse, name, params)


class _Captured(NamedTuple):
    out: str
    err: str


class _CapSys:
    """`capsys`: what the test and the program print."""

    def __init__(self) -> None:
        self.before = sys.stdout, sys.stderr
        self._renew()

    def _renew(self) -> None:
        self.streams = io.StringIO(), io.StringIO()
        sys.stdout, sys.stderr = self.streams

    def readouterr(self) -> _Captured:
        """Return what was printed since the last call."""
        captured = _Captured(*(s.getvalue() for s in self.streams))
        self._renew()
        return captured

    def end(self) -> None:
        """Put the streams from before back."""
        sys.stdout, sys.stderr = self.before


_MISSING = object()
_GENERATOR = 0x20
"""The flag of a generator function's code."""


class _MonkeyPatch:
    """`monkeypatch`, for objects of the program and the test, input, arguments and environment."""

    def __init__(self, port: TestsPort) -> None:
        self.port = port
        self.undos: list[Callable[[], Any]] = []

    def setattr(self, target: Any, name: Any, value: Any = _MISSING, raising: bool = True) -> None:
        """Set an attribute until the test ends."""
        if value is _MISSING:
            path, _, last = target.rpartition(".")
            target, name, value = _imported(path), last, name
        before = getattr(target, name) if raising else getattr(target, name, _MISSING)
        self.undos.append(lambda: delattr(target, name) if before is _MISSING else setattr(target, name, before))
        setattr(target, name, value)
        self.port.patch(target, name, value)
        self.undos.append(lambda: self.port.patch(target, name))

    def delattr(self, target: Any, name: str, raising: bool = True) -> None:
        """Delete an attribute until the test ends."""
        before = getattr(target, name)
        self.undos.append(lambda: setattr(target, name, before))
        delattr(target, name)

    def setitem(self, mapping: Any, key: Any, value: Any) -> None:
        """Set an item until the test ends."""
        before = mapping.get(key, _MISSING)
        self.undos.append(lambda: mapping.pop(key) if before is _MISSING else mapping.__setitem__(key, before))
        mapping[key] = value

    def delitem(self, mapping: Any, key: Any, raising: bool = True) -> None:
        """Delete an item until the test ends."""
        before = mapping.pop(key)
        self.undos.append(lambda: mapping.__setitem__(key, before))

    def setenv(self, name: str, value: str, prepend: Any = None) -> None:
        """Set a variable of the environment until the test ends."""
        self.setitem(os.environ, name, str(value))

    def delenv(self, name: str, raising: bool = True) -> None:
        """Delete a variable of the environment until the test ends."""
        if name in os.environ or raising:
            self.delitem(os.environ, name)

    def syspath_prepend(self, path: Any) -> None:
        """Do nothing: the program's process has its own path."""

    def chdir(self, path: Any) -> None:
        """Refuse: the program's process has its own working folder."""
        raise self.port.refuse("the test changes the working folder, which the program does not see")

    def undo(self) -> None:
        """Put back all that was changed."""
        while self.undos:
            self.undos.pop()()


def _imported(path: str) -> Any:
    parts = path.split(".")
    __import__(parts[0])
    value: Any = sys.modules[parts[0]]
    for part in parts[1:]:
        value = getattr(value, part)
    return value


def parameters(function: Any) -> list[str]:
    """Return the parameters of a test or a fixture that have no default, without `self` of a bound method."""
    bound = isinstance(function, types.MethodType)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    function = getattr(function, "__func__", function)
    code, num_defaults = _code_of(function), len(getattr(function, "__defaults__", None) or ())
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    plain, keywords = names[: code.co_argcount], names[code.co_argcount :]
    required = plain[: len(plain) - num_defaults]
    return [*required[bound:], *(k for k in keywords if k not in (getattr(function, "__kwdefaults__", None) or {}))]


def _code_of(function: Any) -> types.CodeType:
    code: types.CodeType = getattr(function, "__func__", function).__code__
    return code


class Fixtures:
    """The fixtures of one test, made when they are first asked for."""

    def __init__(self, space: dict[str, Any], port: TestsPort, instance: Any) -> None:
        self.port, self.made = port, dict[str, Any]()
        self.ends: list[Callable[[], Any]] = []
        self.known = {f.name: f for f in space.values() if isinstance(f, Fixture)}
        for value in [f for k in type(instance).__mro__ for f in vars(k).values()] if instance is not None else ():
            if isinstance(value, Fixture):
                self.known.setdefault(value.name, value.__get__(instance, type(instance)))

    def __enter__(self) -> Fixtures:
        return self

    def __exit__(self, *_: object) -> None:
        while self.ends:
            self.ends.pop()()

    def automatic(self) -> list[str]:
        """Return the names of the fixtures that every test uses."""
        return [name for name, each in self.known.items() if each.autouse]

    def value(self, name: str) -> Any:
        """Return the value of a fixture. Raises: Unplayable for one that is neither the test's nor known here."""
        if name not in self.made:
            self.made[name] = self._new(name)
        return self.made[name]

    def _new(self, name: str) -> Any:
        if name in self.known:
            return self._run(self.known[name])
        if name == "capsys":
            captured = _CapSys()
            self.ends.append(captured.end)
            return captured
        if name == "monkeypatch":
            patch = _MonkeyPatch(self.port)
            self.ends.append(patch.undo)
            return patch
        if name == "tmp_path":
            from pathlib import Path

            folder = Path(os.environ["TMPDIR"], f"pytest-{len(os.listdir(os.environ['TMPDIR']))}")
            folder.mkdir()
            return folder
        raise self.port.refuse(f"the test needs the fixture {name!r}")

    def _run(self, each: Fixture) -> Any:
        if each.params is not None:
            raise self.port.refuse(f"the fixture {each.name!r} has parameters")
        result = each.function(**{n: self.value(n) for n in parameters(each.function)})
        if not isinstance(result, types.GeneratorType) or not _code_of(each.function).co_flags & _GENERATOR:
            return result
        self.ends.append(lambda: next(result, None))
        return next(result)


def share_dataclasses(port: TestsPort) -> None:
    """Have the functions of `dataclasses` work on objects of the program: they need its process."""
    import dataclasses

    def shared(name: str, local: Any) -> Any:
        def function(x: Any, /, **kwargs: Any) -> Any:
            return local(x, **kwargs) if ref_of(x) is None else port.ask("tool", "dataclasses", name, x, **kwargs)

        return function

    for name in ("asdict", "astuple", "replace", "fields"):
        local = getattr(dataclasses, name)
        if local.__name__ == name:
            setattr(dataclasses, name, shared(name, local))


def share_seeds(port: TestsPort, source: str) -> None:
    """Have a seed that a test sets hold in the program's process too."""
    for module in ("random", *(["numpy.random"] if "numpy" in source else [])):
        owner: Any = import_module(module)
        if owner.seed.__name__ != "shared":
            owner.seed = _shared_seed(port, module, owner.seed)


def _shared_seed(port: TestsPort, module: str, local: Callable[..., None]) -> Callable[..., None]:
    def shared(*args: Any, **kwargs: Any) -> None:
        local(*args, **kwargs)
        port.ask("seed", module, "seed", *args, **kwargs)

    return shared
