"""The class of verifiers, and the decorator `@verifier`, which makes one of a function.

A verifier turns an attempt (response, reference, prompt) into a verdict. Its parameters are a frozen pydantic model,
so they are validated with the recipe. Whatever goes wrong inside a verifier is never a wrong answer: it becomes a
verdict of status "verifier_error", and its response has no reward and leaves the group. Verifiers from outside grade
behind a wall (`_verifier_process.py`).
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verizero.pipeline import registry
from verizero.pipeline.errors import ConfigError, UnknownName, raise_if_operator, raised_at
from verizero.pipeline.types import STATUSES, Attempt, Verdict
from verizero.verifiers import _verifier_process
from verizero.verifiers._reward_functions import PLAIN, RewardFunction, WrongCount, inner_of, shown_parts, verdict_of
from verizero.verifiers._steps import checked_steps
from verizero.verifiers.answer import Answer, after_thinking, final_answer, last_box, last_tag, one_answer

__all__ = [
    "TIME_S", "Answer", "Attempt", "BoundVerifier", "Verdict", "Verifier", "VerifierParams", "after_thinking",
    "final_answer", "last_box", "last_tag", "load", "one_answer", "verifier",
]  # fmt: skip
TIME_S = _verifier_process.TIME_S
BASE = "base"
"""Key in pydantic's validation context: the folder that relative paths start from, or None."""


class VerifierParams(BaseModel):
    """Base of a verifier's parameters: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    is_cheap: ClassVar[bool] = True
    """False if the verifier asks a model or a service, or starts a process of its own."""

    def combined_verifiers(self) -> tuple[BoundVerifier[Any], ...]:
        """Return the verifiers that this one combines."""
        return ()


P = TypeVar("P", bound=VerifierParams)
Single = Callable[[Attempt, P], Verdict | float | bool]
Batch = Callable[[Sequence[Attempt], P], Sequence[Verdict | float | bool]]
OURS = __name__.partition(".")[0]


class Verifier(Generic[P]):
    """A grader with typed parameters, made by `@verifier`. `bind` gives it parameters; then it can score."""

    def __init__(self, name: str, params_type: type[P], single: Single[P] | None, batch: Batch[P] | None) -> None:
        self.name = name
        self.params_type = params_type
        self.single = single
        self.batch = batch
        function: Any = single or batch
        self.__doc__ = function.__doc__
        self.module: str = function.__module__ or ""  # none of what exec made
        self.is_ours = self.module.partition(".")[0] == OURS
        code = inspect.unwrap(function).__code__
        self.file, self.line = code.co_filename, code.co_firstlineno
        self.loaded_by: tuple[str | None, str | None] | None = None
        """(name, absolute path) by which another process can load it; None: it is ours, or made in this process."""
        self.columns: frozenset[str] = frozenset()
        """Columns of the data without which it cannot grade."""
        self.reads_reference = True
        self.reads: Callable[[Any], object] | None = None
        """Reads a reference as the verifier does, and raises DataError for one that it cannot grade by."""

    def bind(
        self, params: Mapping[str, Any] | None = None, base: Path | None = None, time_s: float = TIME_S
    ) -> BoundVerifier[P]:
        """Return this verifier with validated parameters. Relative paths among them start from `base`, as in `load`.

        time_s: seconds that a verifier from outside may take for a response, or a call if it grades batches.
        Raises: ConfigError naming the parameter, its value and what is allowed.
        """
        params = dict(params or {})
        try:
            checked = self.params_type.model_validate(params, context={BASE: base})
        except ValidationError as exc:
            reason = registry.refused_parameters(exc.errors(), list(self.params_type.model_fields))
            raise ConfigError(f"verifier {self.name!r}: {reason}") from exc
        outside = None
        if self.loaded_by is not None and not _verifier_process.is_inside:
            name, path = self.loaded_by
            place = None if base is None else base.absolute()
            is_batch = self.batch is not None
            outside = _verifier_process.ExternalVerifier(
                name, path, place, params, time_s, self.file, self.line, is_batch
            )
        return BoundVerifier(self, checked, time_s, outside)


class BoundVerifier(Generic[P]):
    """A verifier with its parameters: scores lists of attempts, in order."""

    def __init__(
        self,
        verifier: Verifier[P],
        params: P,
        time_s: float = TIME_S,
        outside: _verifier_process.ExternalVerifier | None = None,
    ) -> None:
        self.verifier = verifier
        self.params = params
        self.time_s = time_s
        self._outside = outside

    @property
    def name(self) -> str:
        """Name of the verifier."""
        return self.verifier.name

    @property
    def is_cheap(self) -> bool:
        """True if neither the verifier nor one that it combines asks a model, a service or a process of its own."""
        return self.params.is_cheap and all(part.is_cheap for part in self.params.combined_verifiers())

    def require_columns(self, row: Mapping[str, Any] | None) -> None:
        """Raise ConfigError if the row has not all columns that the verifier asks for."""
        for part in self.params.combined_verifiers():
            part.require_columns(row)
        if missing := sorted(self.verifier.columns - (row or {}).keys()):
            raise ConfigError(
                f"reward function {self.name!r} asks for {missing[0]!r}, and the data has no such column; columns: "
                f"{', '.join(map(str, row or ())) or 'none'}; besides columns it may ask for {', '.join(PLAIN)}"
            )

    def score(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        """Return one verdict per attempt, in order; a failing grader gives "verifier_error", never a zero.

        If a verifier of batches fails, each attempt is graded alone: the row that it fails for costs no other.
        """
        if self._outside is not None:
            return _verifier_process.score(self._outside, attempts)
        return list(self.verdicts_here(attempts))

    def verdicts_here(self, attempts: Sequence[Attempt]) -> Iterator[Verdict]:
        """Yield the verdicts, graded in this process, as they are made."""
        if self.verifier.batch is None:
            yield from map(self._score_one, attempts)
            return
        start = time.perf_counter()
        try:
            returned = self.verifier.batch(attempts, self.params)
            if not isinstance(returned, Iterable):
                raise TypeError(f"returned {returned!r:.60} for {len(attempts)} attempts; return a list of verdicts")
            results = list(returned)
            if len(results) != len(attempts):
                raise WrongCount(f"returned {len(results)} verdicts for {len(attempts)} attempts")
            verdicts = [self._judged(result, attempt, 0.0) for result, attempt in zip(results, attempts, strict=True)]
        except BaseException as exc:
            failed = self._failure(exc, time.perf_counter() - start)
            if len(attempts) == 1 or isinstance(exc, WrongCount):
                yield from [failed] * len(attempts)
                return
            for attempt in attempts:
                yield from self.verdicts_here([attempt])
            return
        yield from verdicts

    def _score_one(self, attempt: Attempt) -> Verdict:
        assert self.verifier.single is not None
        start = time.perf_counter()
        try:
            result = self.verifier.single(attempt, self.params)
            return self._judged(result, attempt, time.perf_counter() - start)
        except BaseException as exc:
            return self._failure(exc, time.perf_counter() - start)

    def _judged(self, result: object, attempt: Attempt, seconds: float) -> Verdict:
        """Return a verifier's result as a verdict. A result without meaning is a failure of the verifier."""
        if isinstance(result, Verdict):
            if result.status not in STATUSES:
                return self._wrong(f"status {result.status!r} is not one of {', '.join(STATUSES)}", seconds)
            extracted = None if result.extracted is None else str(result.extracted)
            seconds = own if 0 < (own := float(result.seconds)) < math.inf else seconds
            parts = shown_parts(result.parts)
            result = replace(result, reason=str(result.reason), extracted=extracted, seconds=seconds, parts=parts)
            if result.status != "graded":
                return replace(result, steps=())
            if result.steps != ():
                try:
                    result = replace(result, steps=checked_steps(attempt.response, result.steps))
                except ValueError as exc:
                    return self._wrong(str(exc), seconds)
        number: Any = result.score if isinstance(result, Verdict) else result
        try:
            score = number if type(number) is float else float("no" if isinstance(number, str | bytes) else number)
        except (TypeError, ValueError, OverflowError):
            what = f"score {number!r:.60} is no number" if isinstance(result, Verdict) else f"returned {number!r:.60}"
            return self._wrong(f"{what}; return a Verdict, or a score from 0 to 1", seconds)
        # Written so that NaN, for which every comparison is false, is caught: it would end the run at the update.
        if not 0.0 <= score <= 1.0:
            return self._wrong(f"score {score!r} is outside [0, 1]", seconds)
        if isinstance(result, Verdict):
            return replace(result, score=score)
        return Verdict("graded", score, "right" if score == 1.0 else "partial" if score else "wrong", seconds=seconds)

    def _failure(self, exc: BaseException, seconds: float) -> Verdict:
        """Return the verdict for an exception; raise it if it is Ctrl-C."""
        if not _verifier_process.is_inside:  # behind the wall only the code itself can raise it
            raise_if_operator(exc)
        try:
            words = f"{type(exc).__name__}: {exc}"
        except Exception:  # its own text raises
            words = type(exc).__name__
        return self._wrong(words, seconds, raised_at(exc, self.verifier.file))

    def _wrong(self, what: str, seconds: float, place: str = "") -> Verdict:
        """Return the verdict for a failed verifier: `what` it did, and the line (by default that of its function)."""
        where = "" if self.verifier.is_ours else f", at {place or f'{self.verifier.file}:{self.verifier.line}'}"
        return Verdict("verifier_error", reason=what[: max(100, 300 - len(where))] + where, seconds=seconds)


@overload
def verifier(function: Single[P], /) -> Verifier[P]: ...
@overload
def verifier(
    *, name: str | None = None, batch: bool = False, reads: Callable[[Any], object] | None = None
) -> Callable[[Callable[..., Any]], Verifier[Any]]: ...
def verifier(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    batch: bool = False,
    reads: Callable[[Any], object] | None = None,
) -> Any:
    """Make a verifier of a function `f(attempt, params) -> Verdict | score in [0, 1] | bool`.

    With `batch=True` the function is `f(attempts, params) -> [Verdict]`. The annotation of `params` is the parameter
    model; a function of the attempt alone has no parameters. Its name is the function's, unless `name` is set. `reads`
    is called with the reference of each row when data is loaded, and raises DataError for one that cannot be used.

    Raises: ConfigError if the annotation of `params` is another type than a subclass of VerifierParams.
    """

    def make(f: Callable[..., Any]) -> Verifier[Any]:
        if not inspect.isfunction(f) or inspect.iscoroutinefunction(f):
            raise ConfigError(f"@verifier goes directly above a def without async, and not on {f!r:.80}")
        hints = get_type_hints(f)
        hints.pop("return", None)
        takes = [hints.get(n) for n in f.__code__.co_varnames[: f.__code__.co_argcount]]
        params_type = takes[1] if len(takes) > 1 else VerifierParams
        if not (isinstance(params_type, type) and issubclass(params_type, VerifierParams)):
            raise ConfigError(
                f"verifier {f.__name__!r}: annotate its 2nd argument with a verizero.verifiers.base.VerifierParams"
            )
        call = f if len(takes) > 1 else wraps(f)(lambda attempt, _: f(attempt))
        made = Verifier(name or f.__name__, params_type, None if batch else call, call if batch else None)
        made.reads = reads
        return made

    return make if function is None else make(function)


class RewardParams(VerifierParams):
    """Parameters of a plain reward function."""

    success: float | None = Field(
        None, allow_inf_nan=False, description="a response with at least this reward counts as right; null: reward 1"
    )


def of_function(function: Callable[..., Any], name: str = "") -> Verifier[RewardParams]:
    """Return a verifier that grades by a reward function, in any form of docs/rewards.md.

    Raises: ConfigError for what is no function, or has arguments that cannot be given by name.
    """
    if not callable(function):
        raise ConfigError(f"{name or function!r} is {type(function).__name__}, and a reward is a function")
    rewards = RewardFunction.of(function, name)

    def grade(attempts: Sequence[Attempt], params: RewardParams) -> list[Verdict]:
        return [_one_verdict(value, params.success) for value in rewards.values(attempts)]

    def grade_one(attempt: Attempt, params: RewardParams) -> Verdict:
        return verdict_of(rewards.values([attempt])[0], params.success)

    inner = inner_of(function)
    # The plain function has a file and a line: of a partial, or the method of an object that is called.
    plain = inner if hasattr(inspect.unwrap(inner), "__code__") else type(inner).__call__
    for made in (grade, grade_one):
        wraps(plain)(made)
    batch = grade if rewards.is_batch else None
    made_verifier = Verifier(rewards.name, RewardParams, None if batch else grade_one, batch)
    made_verifier.columns = rewards.columns
    made_verifier.reads_reference = rewards.reads_reference
    return made_verifier


def _one_verdict(value: Any, success: float | None) -> Verdict:
    """Return the verdict of one value of a batch; a value that is no reward costs no other response."""
    try:
        return verdict_of(value, success)
    except (TypeError, ValueError, OverflowError) as exc:
        return Verdict("verifier_error", reason=str(exc))


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
        return _from_outside(plugin, name, None)
    assert path is not None
    plugin, where = registry.at_path(path, base, "verifier")
    attribute = path.partition(":")[2]
    if not isinstance(plugin, Verifier):
        plugin = of_function(plugin, attribute)
    return _from_outside(plugin, None, f"{where.absolute()}:{path.partition(':')[2]}")


def _from_outside(plugin: Verifier[Any], name: str | None, path: str | None) -> Verifier[Any]:
    if not plugin.is_ours and plugin.loaded_by is None:
        plugin.loaded_by = name, path
    return plugin
