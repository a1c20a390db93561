"""Generators of tasks: each is a params class and `rows(params, seed)`, in a file of its own in this folder.

A generator writes rows in the format of a user's own file:
`{"id", "question", "answer", "domain", "verifier", "environment"?, "demonstration"?}`. It may also have
`text_lines(params, seed) -> list[str]`: unlabelled text in the language of its tasks, for making a base model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, cast

from pydantic import BaseModel, ConfigDict, Field

from verizero.pipeline import registry
from verizero.pipeline.config.data import validated_params
from verizero.pipeline.data.conversations import as_item
from verizero.pipeline.environments.base import Environment
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Call, Message, Verdict

Row = dict[str, Any]
"""One row of data, as JSON holds it. Keys: id, question, answer, domain, verifier, and optionally
environment and demonstration: a text, or a list of messages {role, content, calls?: [{name, arguments}]}."""

Probability = Annotated[float, Field(ge=0.0, le=1.0)]


@dataclass(frozen=True, slots=True)
class Split:
    """Rows to train on and rows held out, with no task in both; and rows to imitate.

    `demonstrations` visits the training tasks in turn, each visit with noise of its own, so a task may occur in it
    more than once, under ids of their own ("<task's id>#<visit>"). The first visit is also the `demonstration` of the
    task's row in `train`.
    """

    train: list[Row]
    evaluation: list[Row]
    demonstrations: list[Row]


class GeneratorParams(BaseModel):
    """Base of a generator's parameters: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def slip(number: int, noise: float, rng: random.Random) -> int:
    """The number, or with chance `noise` one of its two neighbours (never below 0): a slip in a scratchpad."""
    if rng.random() >= noise:
        return number
    return max(0, number + rng.choice((-1, 1)))


class Generator(Protocol):
    """A module (or an entry point's object) that makes tasks."""

    Params: type[GeneratorParams]

    def rows(self, params: Any, seed: int) -> Split:
        """Return all rows; the same seed gives the same rows."""


def load_generator(name: str, params: Mapping[str, Any] | None = None) -> tuple[Generator, GeneratorParams]:
    """The generator called `name`, a file or entry point, with its parameters. Raises: UnknownName; ConfigError."""
    validated = cast(GeneratorParams, validated_params(name, params or {}))
    return cast(Generator, registry.find("generators", name)), validated


def generate(name: str, params: Mapping[str, Any] | None = None, seed: int = 0) -> Split:
    """The rows of the generator called `name`. Raises: UnknownName, ConfigError."""
    generator, validated = load_generator(name, params)
    return generator.rows(validated, seed)


def text_lines(name: str, params: Mapping[str, Any] | None = None, seed: int = 0) -> list[str]:
    """Unlabelled text of the generator called `name`. Raises: UnknownName, ConfigError, DataError if it has none."""
    generator, validated = load_generator(name, params)
    make = getattr(generator, "text_lines", None)
    if not callable(make):
        raise DataError(f"generator {name!r} has no text_lines(params, seed), so no base can be made from its text")
    return list(make(validated, seed))


def with_demonstrations(tasks: Sequence[Row], demonstrations: Sequence[Any]) -> tuple[list[Row], list[Row]]:
    """The training rows with their first demonstrations, and all demonstrations: i is of task `i % len(tasks)`."""
    train = [
        {**task, "demonstration": demonstrations[i]} if i < len(demonstrations) else dict(task)
        for i, task in enumerate(tasks)
    ]
    shown = [
        {**tasks[i % len(tasks)], "id": f"{tasks[i % len(tasks)]['id']}#{i // len(tasks)}", "demonstration": text}
        for i, text in enumerate(demonstrations)
    ]
    return train, shown


Words = str | tuple[str, Mapping[str, Any]]
"""A move of a player: a text, or the name and the arguments of a call."""
Player = Callable[[str], Words]
"""Takes the last observation (at first nothing)."""
MOST_TURNS = 50


def played(environment: Environment, player: Player) -> tuple[list[dict[str, Any]], Verdict | None]:
    """Return the messages after the question, as a row's demonstration holds them, and the environment's verdict."""
    messages: list[dict[str, Any]] = []
    try:
        environment.start()
        observed = ""
        for turn in range(MOST_TURNS):
            words = player(observed)
            message = spoken(words, turn)
            messages.append(as_item(message))
            reply = environment.step(message)
            messages.extend(map(as_item, reply.messages))
            if reply.done:
                return messages, reply.outcome
            observed = reply.messages[-1].content
    finally:
        environment.close()
    return messages, None


def spoken(words: Words, turn: int) -> Message:
    """Return the player's message."""
    if isinstance(words, str):
        return Message("assistant", words)
    return Message("assistant", "", (Call(f"{turn}-0", *words),))
