"""What a verifier is, and `@verifier`, which makes one of a function.

A verifier turns an attempt (response, reference, prompt) into a verdict. Its parameters are a frozen pydantic model,
so they are validated with the recipe. An exception inside a verifier is never a wrong answer: it becomes a verdict of
status "verifier_error" that leaves the group.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline import registry
from pipeline.errors import ConfigError, UnknownName
from pipeline.types import Attempt, Verdict
from verifiers.answer import Answer, after_thinking, final_answer, last_box, last_tag

__all__ = [
    "Attempt",
    "BoundVerifier",
    "Answer",
    "Verdict",
    "Verifier",
    "VerifierParams",
    "after_thinking",
    "final_answer",
    "last_box",
    "last_tag",
    "load",
    "verifier",
]


BASE = "base"
"""Key of the context of validation that holds the folder which relative paths are taken from, or None."""


class VerifierParams(BaseModel):
    """Base of a verifier's parameters: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    may_leave: ClassVar[bool] = True
    """It may be graded by in another process: it holds no model, connection or process of its own."""


P = TypeVar("P", bound=VerifierParams)
One = Callable[[Attempt, P], Verdict | float | bool]
Many = Callable[[Sequence[Attempt], P], Sequence[Verdict]]


class Verifier(Generic[P]):
    """A named grader with typed parameters. Made by `@verifier`; call `bind` to get something that scores."""

    def __init__(self, name: str, params_type: type[P], one: One[P] | None, many: Many[P] | None) -> None:
        self.name = name
        self.params_type = params_type
        self.one = one
        self.many = many
        self.__doc__ = (one or many).__doc__

    def bind(self, params: Mapping[str, Any] | None = None, base: Path | None = None) -> BoundVerifier[P]:
        """This verifier with validated parameters. Relative paths among them are taken from `base`, as by `load`.

        Raises: ConfigError naming the parameter, its value and what is allowed.
        """
        try:
            return BoundVerifier(self, self.params_type.model_validate(dict(params or {}), context={BASE: base}))
        except ValidationError as exc:
            raise ConfigError(f"verifier {self.name!r}: {_explain(exc, self.params_type)}") from exc


class BoundVerifier(Generic[P]):
    """A verifier with its parameters: scores lists of attempts, in order."""

    def __init__(self, verifier: Verifier[P], params: P) -> None:
        self.verifier = verifier
        self.params = params

    @property
    def name(self) -> str:
        """Name of the verifier."""
        return self.verifier.name

    def score(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        """One verdict per attempt, in order; a failing grader gives "verifier_error", never a zero."""
        if self.verifier.many is None:
            return [self._score_one(a) for a in attempts]
        start = time.perf_counter()
        try:
            verdicts = list(self.verifier.many(attempts, self.params))
        except Exception as exc:
            return [_failure(exc, time.perf_counter() - start)] * len(attempts)
        if len(verdicts) != len(attempts):
            reason = f"returned {len(verdicts)} verdicts for {len(attempts)} attempts"
            return [Verdict("verifier_error", reason=reason)] * len(attempts)
        return verdicts

    def _score_one(self, attempt: Attempt) -> Verdict:
        assert self.verifier.one is not None
        start = time.perf_counter()
        try:
            said = self.verifier.one(attempt, self.params)
        except Exception as exc:
            return _failure(exc, time.perf_counter() - start)
        seconds = time.perf_counter() - start
        if isinstance(said, Verdict):
            return said if said.seconds else _with_seconds(said, seconds)
        score = float(said)
        if not 0.0 <= score <= 1.0:
            return Verdict("verifier_error", reason=f"score {score!r} is outside [0, 1]", seconds=seconds)
        return Verdict("graded", score, "right" if score == 1.0 else "partial" if score else "wrong", seconds=seconds)


@overload
def verifier(function: One[P], /) -> Verifier[P]: ...
@overload
def verifier(*, name: str | None = None, batch: bool = False) -> Callable[[Callable[..., Any]], Verifier[Any]]: ...
def verifier(function: Any = None, /, *, name: str | None = None, batch: bool = False) -> Any:
    """Make a verifier of `f(attempt, params) -> Verdict | score in [0, 1] | bool`.

    With `batch=True`, of `f(attempts, params) -> [Verdict]`. The annotation of `params` is the parameter model; a
    function of the attempt alone has no parameters. The verifier is called like the function, unless named.
    """

    def make(f: Callable[..., Any]) -> Verifier[Any]:
        hints = get_type_hints(f)
        hints.pop("return", None)
        takes = [hints.get(n) for n in f.__code__.co_varnames[: f.__code__.co_argcount]]
        params_type = takes[1] if len(takes) > 1 else VerifierParams
        if not (isinstance(params_type, type) and issubclass(params_type, VerifierParams)):
            raise ConfigError(
                f"verifier {f.__name__!r}: annotate its 2nd argument with a verifiers.base.VerifierParams"
            )
        call = f if len(takes) > 1 else lambda given, _: f(given)
        one, many = (None, call) if batch else (call, None)
        return Verifier(name or f.__name__, params_type, one, many)

    return make if function is None else make(function)


def load(name: str | None = None, path: str | None = None, base: Path | None = None) -> Verifier[Any]:
    """The verifier called `name` (a file here or an entry point), or that at `path`, "file.py:function".

    A relative path is taken from `base` (the recipe's folder), default the working folder.
    Raises: UnknownName, ConfigError.
    """
    if (name is None) == (path is None):
        raise ConfigError("a verifier needs either a name or a path, e.g. {name: math} or {path: checks.py:my_check}")
    if name is not None:
        found = registry.find("verifiers", name)
        if isinstance(found, ModuleType):
            found = getattr(found, name, None)
        if not isinstance(found, Verifier):
            raise UnknownName(f"{name!r} is not a verifier; known: {', '.join(registry.names('verifiers'))}")
        return found
    assert path is not None
    file, _, attribute = path.partition(":")
    where = (base or Path.cwd()) / file
    if not where.is_file() or not attribute:
        raise ConfigError(f"verifier path {path!r}: expected 'file.py:function', looked for {where}")
    module = _import_file(where)
    found = getattr(module, attribute, None)
    if not isinstance(found, Verifier):
        raise ConfigError(f"verifier path {path!r}: {attribute!r} in {where} is not decorated with @verifier")
    return found


def _import_file(where: Path) -> ModuleType:
    name = f"verizero_plugin_{where.stem}_{abs(hash(str(where.resolve())))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as exc:
        del sys.modules[name]
        raise ConfigError(f"verifier file {where} does not import: {type(exc).__name__}: {exc}") from exc
    return module


def _failure(exc: Exception, seconds: float) -> Verdict:
    return Verdict("verifier_error", reason=f"{type(exc).__name__}: {exc}"[:300], seconds=seconds)


def _with_seconds(verdict: Verdict, seconds: float) -> Verdict:
    return Verdict(verdict.status, verdict.score, verdict.reason, verdict.extracted, seconds)


def _explain(exc: ValidationError, params_type: type[BaseModel]) -> str:
    lines = []
    for error in exc.errors():
        where = ".".join(str(x) for x in error["loc"])
        if error["type"] == "extra_forbidden":
            lines.append(f"unknown parameter {where!r}; known: {', '.join(params_type.model_fields) or 'none'}")
        else:
            lines.append(f"{where}: {error['msg']}, got {error['input']!r}")
    return "; ".join(lines)
