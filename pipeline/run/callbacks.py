"""Callbacks: functions of a user's that are called after each step and each evaluation, and may end the run.

The first rank calls them, and all ranks learn what they returned. Nothing of a run depends on them, unless they end it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from verizero.pipeline.errors import ConfigError, RunError, Stopped, exception_text
from verizero.pipeline.registry import at_path
from verizero.pipeline.report.row_types import EvaluationRow, Numbers, SampleRow, StepRow
from verizero.pipeline.types import Group

if TYPE_CHECKING:
    from verizero.pipeline.train.ranks import Ranks


class Stop(Enum):
    """The type of `vz.STOP`, which a callback returns to end the run."""

    STOP = "stop"


STOP = Stop.STOP


@dataclass(frozen=True, slots=True)
class Event:
    """One step that is done, or one evaluation.

    Example: Event(stage="rl", round=1, step=3, row=StepRow(...)); its `metrics` are those of metrics.jsonl.
    """

    stage: str
    """Name of the stage; "base" for the evaluation before training."""
    round: int
    """From 1; 0 where the stage has no rounds."""
    step: int
    """The number of the step, from 1, as in metrics.jsonl: of RL over all rounds, else within the stage. Of an
    evaluation: the number of RL steps before it."""
    row: StepRow | SampleRow | EvaluationRow
    """The line of metrics.jsonl. An evaluation's has `domains`: domain -> measure -> {"value", "low", "high"} or count.
    """
    _read_groups: Callable[[], Sequence[Group]] = field(repr=False)

    @property
    def kind(self) -> Literal["step", "evaluation"]:
        """Return which of the two is over."""
        return "evaluation" if isinstance(self.row, EvaluationRow) else "step"

    @property
    def metrics(self) -> Numbers:
        """Numbers of the step by name; none for an evaluation, whose row has `domains`."""
        return {} if isinstance(self.row, EvaluationRow) else self.row.metrics

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups that a step of RL sampled, of all ranks, also those that it did not train on; else none.

        They can be read while the callback runs, so that an event which is kept does not keep all responses.
        Raises: ConfigError later.
        """
        return tuple(self._read_groups())


Callback = Callable[[Event], Stop | None]


class Callbacks:
    """The callbacks of a run. All ranks have as many; only the first one has their functions."""

    def __init__(self, functions: Sequence[tuple[str, Callback]] = (), is_on: bool = False) -> None:
        """`functions`: those of this rank, with their names. `is_on`: True if the run has callbacks, on every rank."""
        self._functions, self._is_on = tuple(functions), is_on
        self.stopped_by = ""
        """Who asked for the end of the run, in words; empty: nobody."""
        self.stopped_at = ""
        """The step or evaluation after which it was asked for."""

    def call(self, ranks: Ranks, row: StepRow | SampleRow | EvaluationRow, groups: Sequence[Group] = ()) -> None:
        """Call each function with the event of this row. Every rank must call this.

        If one returns STOP the others are called too, and `stopped_by` is set.
        Raises: RunError, on all ranks, if one raises or returns anything else; it names file and line.
        """
        if not self._is_on:
            return
        stopped_by, failure = ranks.decide_on_first(lambda: self._answers(row, groups))
        if failure:
            raise RunError(failure)
        if stopped_by:
            evaluated = f"evaluate {row.label}" if isinstance(row, EvaluationRow) else ""
            self.stopped_by, self.stopped_at = stopped_by, evaluated or f"{row.stage} step {row.step}"

    def raise_if_stopped(self) -> None:
        """Raise Stopped if a callback asked for the end of the run."""
        if self.stopped_by:
            raise Stopped(self.stopped_by)

    def _answers(self, row: StepRow | SampleRow | EvaluationRow, groups: Sequence[Group]) -> tuple[str, str]:
        """Return who asked for the end, and what went wrong, each in words or empty."""
        readable: Sequence[Group] | None = groups
        stopped_by = ""

        def read() -> Sequence[Group]:
            if readable is None:
                raise ConfigError("event.groups was read after its callback had returned; keep list(event.groups)")
            return readable

        event = Event(row.stage, row.round, row.step, row, read)
        for name, function in self._functions:
            try:
                answer: object = function(event)
            except Exception as exc:
                return "", f"callback {name} failed: {exception_text(exc)}"
            if answer is STOP:
                stopped_by = f"callback {name} returned STOP; the same command continues from here"
            elif answer is not None:
                return "", f"callback {name} returned {answer!r:.80}; return None, or vz.STOP to end the run"
        readable = None
        return stopped_by, ""


def load_callbacks(
    paths: Sequence[str], base: Path | None, added: Sequence[str | Callback] = (), is_first: bool = True
) -> Callbacks:
    """Return the callbacks of a recipe, whose paths are relative to `base`, and those that a program gave.

    `added`: functions, or paths relative to the working folder. `is_first`: False on ranks that call none.
    Raises: ConfigError for a path without a function, or what cannot be called with one event.
    """
    is_on = bool(paths or added)
    if not is_first:
        return Callbacks(is_on=is_on)
    functions = [_loaded(path, base) for path in paths]
    functions += [_loaded(f, None) if isinstance(f, str) else _checked(_name_of(f), f) for f in added]
    return Callbacks(functions, is_on)


def _loaded(path: str, base: Path | None) -> tuple[str, Callback]:
    return _checked(path, at_path(path, base, "callback")[0])


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _checked(name: str, function: Any) -> tuple[str, Callback]:
    """Return name and function. Raises: ConfigError unless it can be called with one event."""
    if not callable(function):
        raise ConfigError(f"callback {name}: {function!r:.80} is {type(function).__name__}; give a function f(event)")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"callback {name} is async, and nothing awaits it; give a plain function f(event)")
    try:
        inspect.signature(function).bind(None)
    except TypeError as exc:
        raise ConfigError(f"callback {name} is called as f(event), and {exc}; give it one argument") from exc
    except ValueError:  # a builtin, which has no signature
        pass
    return name, function
