"""The class of all verifiers, and the decorator `@verifier`, which makes a verifier of a function.

A verifier turns an attempt (response, reference, prompt) into a verdict. Its parameters are a frozen pydantic model,
so they are validated with the recipe. An exception inside a verifier is never a wrong answer: it becomes a verdict of
status "verifier_error", and its response has no reward and leaves the group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline import registry
from pipeline.errors import ConfigError, UnknownName
from pipeline.types import Attempt, Verdict
from verifiers.answer import Answer, after_thinking, final_answer, last_box, last_tag, one_answer

__all__ = [
    "Answer",
    "Attempt",
    "BoundVerifier",
    "Verdict",
    "Verifier",
    "VerifierParams",
    "after_thinking",
    "final_answer",
    "last_box",
    "last_tag",
    "load",
    "one_answer",
    "verifier",
]


BASE = "base"
"""Key in pydantic's validation context: the folder that relative paths start from, or None."""


class VerifierParams(BaseModel):
    """Base of a verifier's parameters: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    may_leave: ClassVar[bool] = True
    """True if another process may grade: the verifier holds no model, connection or process of its own."""

    def combined_verifiers(self) -> tuple[BoundVerifier[Any], ...]:
        """Return the verifiers that this one combines."""
        return ()


P = TypeVar("P", bound=VerifierParams)
Single = Callable[[Attempt, P], Verdict | float | bool]
Batch = Callable[[Sequence[Attempt], P], Sequence[Verdict]]


class Verifier(Generic[P]):
    """A named grader with typed parameters. Made by `@verifier`; call `bind` to get something that scores."""

    def __init__(self, name: str, params_type: type[P], single: Single[P] | None, batch: Batch[P] | None) -> None:
        self.name = name
        self.params_type = params_type
        self.single = single
        self.batch = batch
        function = single or batch
        self.__doc__ = function.__doc__
        self.module: str = function.__module__

    def bind(self, params: Mapping[str, Any] | None = None, base: Path | None = None) -> BoundVerifier[P]:
        """Return this verifier with validated parameters. Relative paths among them start from `base`, as in `load`.

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
        """Return one verdict per attempt, in order; a failing grader gives "verifier_error", never a zero.

        If a verifier of batches raises, each attempt is graded alone: the row that it raises for costs no other.
        """
        if self.verifier.batch is None:
            return [self._score_one(a) for a in attempts]
        start = time.perf_counter()
        try:
            verdicts = list(self.verifier.batch(attempts, self.params))
        except Exception as exc:
            if len(attempts) > 1:
                return [verdict for attempt in attempts for verdict in self.score([attempt])]
            return [_failure(exc, time.perf_counter() - start)] * len(attempts)
        if len(verdicts) != len(attempts):
            reason = f"returned {len(verdicts)} verdicts for {len(attempts)} attempts"
            return [Verdict("verifier_error", reason=reason)] * len(attempts)
        return verdicts

    def _score_one(self, attempt: Attempt) -> Verdict:
        assert self.verifier.single is not None
        start = time.perf_counter()
        try:
            result = self.verifier.single(attempt, self.params)
        except Exception as exc:
            return _failure(exc, time.perf_counter() - start)
        seconds = time.perf_counter() - start
        if isinstance(result, Verdict):
            return result if result.seconds else replace(result, seconds=seconds)
        score = float(result)
        if not 0.0 <= score <= 1.0:
            return Verdict("verifier_error", reason=f"score {score!r} is outside [0, 1]", seconds=seconds)
        return Verdict("graded", score, "right" if score == 1.0 else "partial" if score else "wrong", seconds=seconds)


@overload
def verifier(function: Single[P], /) -> Verifier[P]: ...
@overload
def verifier(*, name: str | None = None, batch: bool = False) -> Callable[[Callable[..., Any]], Verifier[Any]]: ...
def verifier(function: Any = None, /, *, name: str | None = None, batch: bool = False) -> Any:
    """Make a verifier of a function `f(attempt, params) -> Verdict | score in [0, 1] | bool`.

    With `batch=True` the function is `f(attempts, params) -> [Verdict]`. The annotation of `params` is the parameter
    model; a function of the attempt alone has no parameters. Its name is the function's, unless `name` is set.
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
        call = f if len(takes) > 1 else wraps(f)(lambda attempt, _: f(attempt))
        return Verifier(name or f.__name__, params_type, None if batch else call, call if batch else None)

    return make if function is None else make(function)


def load(name: str | None = None, path: str | None = None, base: Path | None = None) -> Verifier[Any]:
    """Return the verifier called `name` (a file here or an entry point) or the verifier at `path`, "file.py:function".

    A relative path starts from `base` (the recipe's folder), by default from the working folder.
    Raises: UnknownName, ConfigError.
    """
    if (name is None) == (path is None):
        raise ConfigError("a verifier needs either a name or a path, e.g. {name: math} or {path: checks.py:my_check}")
    if name is not None:
        plugin = registry.find("verifiers", name)
        if isinstance(plugin, ModuleType):  # a file's verifier has the file's name, also where `name` is a former one
            plugin = getattr(plugin, plugin.__name__.rpartition(".")[2], None)
        if not isinstance(plugin, Verifier):
            raise UnknownName(f"{name!r} is not a verifier; known: {', '.join(registry.names('verifiers'))}")
        return plugin
    assert path is not None
    plugin, where = registry.at_path(path, base, "verifier")
    if not isinstance(plugin, Verifier):
        attribute = path.partition(":")[2]
        raise ConfigError(f"verifier path {path!r}: {attribute!r} in {where} is not decorated with @verifier")
    return plugin


def _failure(exc: Exception, seconds: float) -> Verdict:
    return Verdict("verifier_error", reason=f"{type(exc).__name__}: {exc}"[:300], seconds=seconds)


def _explain(exc: ValidationError, params_type: type[BaseModel]) -> str:
    lines = []
    for error in exc.errors():
        where = ".".join(str(x) for x in error["loc"])
        if error["type"] == "extra_forbidden":
            lines.append(f"unknown parameter {where!r}; known: {', '.join(params_type.model_fields) or 'none'}")
        else:
            lines.append(f"{where}: {error['msg']}, got {error['input']!r}")
    return "; ".join(lines)
