"""Reward functions as they are written for other libraries: which form a function has, and how it is called.

The names of its arguments tell the form (docs/rewards.md has the table):

    f(completion, answer)                              plain: once a response; any column of the data by its name
    f(prompts, completions, completion_ids, **columns) TRL, unsloth: once a batch
    f(data_source, solution_str, ground_truth, extra_info)   verl: once a response
    f(queries, prompts, labels)                        OpenRLHF: once a batch
    async def f(completion, answer, info, state)       verifiers: awaited, several at a time
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.types import MAX_REWARD, Attempt, Verdict

Form = Literal["plain", "trl", "verl", "openrlhf", "verifiers"]
QUESTION_COLUMNS = ("prompt", "messages", "question", "problem", "instruction", "query", "input")
"""Columns that hold the question, the first of them that a row has."""
REFERENCES: dict[Form, frozenset[str]] = {
    "plain": frozenset({"answer", "reference"}),
    "verifiers": frozenset({"answer", "reference", "state"}),
    "verl": frozenset({"ground_truth"}),
    "openrlhf": frozenset({"labels"}),
    "trl": frozenset(),
}
"""Arguments that get the answer of the prompt."""
AT_ONCE = 32
"""Calls of an async function that wait at the same time."""
TOTALS = ("score", "reward", "rewards")
"""Keys of a returned dict that hold the reward; its other numbers are parts, which are shown."""
PLAIN: dict[str, Callable[[Attempt], Any]] = {
    "completion": lambda a: a.response,
    "response": lambda a: a.response,
    "prompt": lambda a: prompt_of(a),
    "question": lambda a: a.prompt,
    "answer": lambda a: a.reference,
    "reference": lambda a: a.reference,
    "row": lambda a: dict(a.row or {}),
    "truncated": lambda a: a.truncated,
}
VERIFIERS: dict[str, Callable[[Attempt], Any]] = {
    **PLAIN,
    "completion": lambda a: messages_of(a),
    "prompt": lambda a: question_messages(a),
    "info": lambda a: (a.row or {}).get("info", {}),
    "task": lambda a: (a.row or {}).get("task", "default"),
    "state": lambda a: {
        "prompt": question_messages(a),
        "completion": messages_of(a),
        "answer": a.reference,
        "info": (a.row or {}).get("info", {}),
    },
}
VERL: dict[str, Callable[[Attempt], Any]] = {
    "data_source": lambda a: (a.row or {}).get("data_source", ""),
    "solution_str": lambda a: a.response,
    "ground_truth": lambda a: a.reference,
    "extra_info": lambda a: (a.row or {}).get("extra_info", {}),
}
TRL: dict[str, Callable[[Sequence[Attempt]], Any]] = {
    "prompts": lambda some: [prompt_of(a) for a in some],
    "completions": lambda some: [messages_of(a) if is_chat(a) else a.response for a in some],
    "completion_ids": lambda some: [list(a.response_ids) for a in some],
}
OPENRLHF: dict[str, Callable[[Sequence[Attempt]], Any]] = {
    "queries": lambda some: [a.prompt + a.response for a in some],
    "prompts": lambda some: [a.prompt for a in some],
    "labels": lambda some: [a.reference for a in some],
}


class WrongCount(ValueError):
    """A call for several responses returned another number of values; they may not be asked about one by one."""


def is_chat(attempt: Attempt) -> bool:
    """True if the row's question is a list of messages."""
    return isinstance(_question_column(attempt), list)


def prompt_of(attempt: Attempt) -> Any:
    """Return the question as the row has it: a text, or a list of messages."""
    return _question_column(attempt) if is_chat(attempt) else attempt.prompt


def question_messages(attempt: Attempt) -> list[dict[str, Any]]:
    """Return the question as messages."""
    column = _question_column(attempt)
    return list(column) if isinstance(column, list) else [{"role": "user", "content": attempt.prompt}]


def messages_of(attempt: Attempt) -> list[dict[str, Any]]:
    """Return the response as messages: one of the assistant, or those of an episode behind its question."""
    if not attempt.messages:
        return [{"role": "assistant", "content": attempt.response}]
    own = [{"role": m.role, "content": m.content} for m in attempt.messages]
    first = next((i for i, m in enumerate(own) if m["role"] == "assistant"), len(own))
    return own[first:]


def _question_column(attempt: Attempt) -> Any:
    row = attempt.row or {}
    return next((row[name] for name in QUESTION_COLUMNS if name in row), None)


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A function, the form that it is written in, and the columns of the data that it asks for."""

    function: Callable[..., Any]
    name: str
    form: Form
    columns: frozenset[str]
    """Arguments without a default that only a column can give."""
    takes_all: bool
    """It has **kwargs: every column is passed."""
    arguments: frozenset[str]

    @classmethod
    def of(cls, function: Callable[..., Any], name: str = "") -> RewardFunction:
        """Return the function in its form. Raises: ConfigError if it cannot be called by names."""
        name = name or getattr(inner_of(function), "__name__", type(function).__name__)
        if isinstance(function, type):
            raise ConfigError(
                f"reward function {name!r} is a class; give an object that can be called: {name}(), or in a file "
                f"reward = {name}() and the name reward"
            )
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError) as exc:
            raise ConfigError(
                f"reward function {name!r}: its arguments cannot be read ({exc}); wrap it in a def"
            ) from exc
        if not parameters:
            raise ConfigError(f"reward function {name!r} sees no response; write def f(completion, answer): ...")
        for p in parameters.values():
            if p.kind is p.POSITIONAL_ONLY or p.kind is p.VAR_POSITIONAL:
                raise ConfigError(
                    f"reward function {name!r}: argument {str(p)!r} has no name to be given by; "
                    "write def f(completion, answer): ..."
                )
        names = frozenset(n for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD)
        form = _form(function, names)
        known = names & (_FORMS[form].keys() | _TRL_HOOKS.keys() if form == "trl" else _FORMS[form].keys())
        columns = frozenset(n for n in names - known if parameters[n].default is inspect.Parameter.empty)
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if hasattr(function, "cache_parameters") and (form != "plain" or "row" in names):
            function = inner_of(function)  # a cache takes no lists and dicts, and no coroutine twice
        return cls(function, name, form, columns, takes_all, names)

    @property
    def reads_reference(self) -> bool:
        """True if it asks for the answer of the prompt, and not for a column of that name."""
        return bool(self.arguments & REFERENCES[self.form])

    @property
    def is_batch(self) -> bool:
        """True if it grades many responses in one call, or waits for many at once."""
        return self.form in ("trl", "openrlhf") or _is_async(self.function)

    def values(self, attempts: Sequence[Attempt]) -> list[Any]:
        """Return what the function says of each attempt, in order. Raises: what the function raises; ValueError."""
        if self.form in ("trl", "openrlhf"):
            return _split(_awaited([self._of_batch(attempts)])[0], len(attempts))
        return _awaited([self.function(**self._one(a)) for a in attempts])

    def _one(self, attempt: Attempt) -> dict[str, Any]:
        row = attempt.row or {}
        arguments = {n: read(attempt) for n, read in _ONE[self.form].items() if n in self.arguments}
        return arguments | {
            n: v for n, v in row.items() if (n in self.arguments or self.takes_all) and n not in arguments
        }

    def _of_batch(self, attempts: Sequence[Attempt]) -> Any:
        forms = TRL if self.form == "trl" else OPENRLHF
        arguments: dict[str, Any] = {
            n: read(attempts) for n, read in forms.items() if n in self.arguments or self.takes_all
        }
        if self.form == "trl":
            arguments |= {n: v for n, v in _TRL_HOOKS.items() if n in self.arguments or self.takes_all}
        columns = dict.fromkeys(n for a in attempts for n in a.row or ())
        for n in columns:
            if (n in self.arguments or self.takes_all) and n not in arguments and n not in ("prompt", "completion"):
                arguments[n] = [(a.row or {}).get(n) for a in attempts]
        return self.function(**arguments)


_ONE: dict[Form, dict[str, Callable[[Attempt], Any]]] = {"plain": PLAIN, "verl": VERL, "verifiers": VERIFIERS}
_FORMS: dict[Form, Mapping[str, Any]] = {**_ONE, "trl": TRL, "openrlhf": OPENRLHF}
_TRL_HOOKS: dict[str, Any] = {"trainer_state": None, "log_extra": lambda *_: None, "log_metric": lambda *_: None}
"""Further arguments that TRL gives: the trainer's state, which grading does not know, and two ways to log."""


def _form(function: Callable[..., Any], names: frozenset[str]) -> Form:
    if "queries" in names:
        return "openrlhf"
    if names & TRL.keys():
        return "trl"
    if {"solution_str", "ground_truth"} <= names:
        return "verl"
    return "verifiers" if _is_async(function) else "plain"


def inner_of(function: Any) -> Any:
    """Return the function within partials and caches."""
    while isinstance(function, partial) or hasattr(function, "cache_parameters"):
        function = function.func if isinstance(function, partial) else function.__wrapped__
    return function


def _is_async(function: Any) -> bool:
    inner = inner_of(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


def _awaited(values: list[Any]) -> list[Any]:
    """Return the values, after those were awaited that have to be."""
    if not any(map(inspect.isawaitable, values)):
        return values
    # With a factory it leaves the thread's own event loop, which other functions may ask for, as it is.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(_gathered(values))


async def _gathered(values: Sequence[Any]) -> list[Any]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(value: Any) -> Any:
        async with places:
            return await value if inspect.isawaitable(value) else value

    return list(await asyncio.gather(*map(one, values)))


def _split(returned: Any, count: int) -> list[Any]:
    """Return a value for each response: of a list, a tensor, or a dict of them."""
    if isinstance(returned, Mapping):
        columns: dict[str, list[Any]] = {}
        for name, column in _numeric_columns(returned):
            # A column that is only shown, and is of another shape, is left out.
            with contextlib.nullcontext() if name in TOTALS else contextlib.suppress(TypeError, ValueError):
                columns[name] = _split(column, count)
        if not any(k in columns for k in TOTALS):
            raise ValueError(f"returned a dict without {' or '.join(map(repr, TOTALS))}: keys {list(returned)}")
        return [{k: v[i] for k, v in columns.items()} for i in range(count)]
    values = returned.tolist() if hasattr(returned, "tolist") else returned
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"returned {returned!r:.60} for {count} responses; return a list with a number for each")
    values = list(values)
    if len(values) != count:
        raise WrongCount(f"returned {len(values)} values for {count} responses; return one for each")
    return values


def _numeric_columns(returned: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in returned.items():
        if isinstance(value, Mapping):  # OpenRLHF's extra_logs
            yield from ((k, v) for k, v in value.items() if _is_column(v))
        elif _is_column(value):
            yield key, value


def _is_column(value: Any) -> bool:
    return hasattr(value, "tolist") or (isinstance(value, Sequence) and not isinstance(value, str | bytes))


def verdict_of(value: Any, success: float | None = None) -> Verdict:
    """Return what a function said of one response as a verdict: any finite number is a reward, None abstains.

    success: the reward from which on a response is right. Without it a reward in [0, 1] is right if it is 1, and
    another reward says nothing about right and wrong.
    Raises: TypeError, ValueError for what is no finite number.
    """
    if isinstance(value, Verdict):
        return value
    parts: tuple[tuple[str, float], ...] = ()
    if isinstance(value, Mapping):
        key = next((k for k in TOTALS if k in value), None)
        if key is None:
            raise ValueError(f"returned a dict without {' or '.join(map(repr, TOTALS))}: keys {list(value)}")
        parts = shown_parts((k, v) for k, v in value.items() if k != key)
        value = value[key]
    if value is None:
        return Verdict("abstained", reason="the reward function returned None")
    number = _number(value)
    if not abs(number) <= MAX_REWARD:  # written so that NaN is caught too
        raise ValueError(f"returned {number}; a reward is a number up to {MAX_REWARD:g}, or None for no reward")
    is_share = 0.0 <= number <= 1.0
    right = None if success is None else number >= success
    score = min(1.0, max(0.0, number)) if right is None else float(right)
    reason = ("right" if score == 1.0 else "partial" if score else "wrong") if is_share or right is not None else ""
    if not is_share or right is not None:
        reason = f"{reason}, reward {number:g}".removeprefix(", ")
    return Verdict("graded", score, reason, reward=None if number == score else number, right=right, parts=parts)


def shown_parts(parts: Iterable[tuple[Any, Any]]) -> tuple[tuple[str, float], ...]:
    """Return those that are numbers. They train nothing, so that NaN, infinity and what is too large are allowed."""
    numbers: dict[str, float] = {}
    for name, value in parts:
        with contextlib.suppress(TypeError, ValueError):  # an array of several
            try:
                numbers |= {str(name): float(value)} if _is_number(value) else {}
            except OverflowError:
                numbers[str(name)] = math.inf if value > 0 else -math.inf
    return tuple(numbers.items())


def _is_number(value: Any) -> bool:
    return not isinstance(value, str | bytes) and (isinstance(value, int | float) or hasattr(value, "__float__"))


def _number(value: Any) -> float:
    if not _is_number(value):
        raise TypeError(f"returned {value!r:.60}; a reward is a number, or None for no reward")
    return float(value)
