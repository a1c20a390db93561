"""A number from `low` to `high` to guess in a few tries; each wrong guess is answered with "higher" or "lower".

The row's answer is the number; a row without one gets a number that its task seed decides. What is no number of the
range uses up a try.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, model_validator

from verizero.pipeline.environments.base import EnvironmentParams, Reply, Start, answer_of
from verizero.pipeline.errors import DataError
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Message, Prompt, Verdict

EXAMPLE = Prompt("guess/23", "1 to 32?", "environment", 23)
NUMBER = re.compile(r"\d{1,18}", re.ASCII)


class Params(EnvironmentParams):
    """The range, and the tries."""

    low: int = Field(1, ge=0)
    high: int = Field(32, ge=1)
    tries: int = Field(5, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Params:
        if self.low > self.high:
            raise ValueError(f"low must be <= high, got {self.low} > {self.high}")
        return self


class Guess:
    """One game. It ends when the tries are used up."""

    def __init__(self, params: Params, number: int) -> None:
        """`number` is to be guessed."""
        self.params, self.number = params, number
        self.left = params.tries

    def start(self) -> Start:
        """Show the row's question."""
        return Start()

    def step(self, message: Message) -> Reply:
        """Compare the guess with the number."""
        self.left -= 1
        text = answer_of(message)
        guess = int(text) if NUMBER.fullmatch(text) else None
        if guess == self.number:
            used = self.params.tries - self.left
            return Reply(done=True, outcome=Verdict("graded", 1.0, f"guessed: try {used}", str(guess)))
        if self.left == 0:
            return Reply(done=True, outcome=Verdict("graded", 0.0, "out_of_tries", text[:200] or None))
        if guess is None or not self.params.low <= guess <= self.params.high:
            words = f"a number from {self.params.low} to {self.params.high}"
        else:
            words = "higher" if guess < self.number else "lower"
        return Reply((Message("user", words),))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def environment(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> Guess:
    """Return a new game. Raises: DataError if the row's answer is no number of the range."""
    reference: Any = prompt.reference
    if reference is None:
        return Guess(params, stream(task_seed, "guess").randint(params.low, params.high))
    if not NUMBER.fullmatch(str(reference)) or not params.low <= int(reference) <= params.high:
        raise DataError(f"answer: expected a number from {params.low} to {params.high}, got {reference!r:.80}")
    return Guess(params, int(reference))
