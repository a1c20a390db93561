"""Numbers to guess with the environment `guess`, and games of a player that guesses anywhere in the interval left.

The question is the same for every number, so there is nothing to hold out: both training and evaluation ask for each
number once, under ids of their own.
"""

from __future__ import annotations

import random
from typing import Any

from pydantic import Field

from verizero.pipeline.data.generators.base import GeneratorParams, Row, Split, played, with_demonstrations
from verizero.pipeline.environments import guess
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Prompt, Verdict


class Params(guess.Params, GeneratorParams):
    """The range and the tries, which must be those of the environment, and how many games are shown."""

    low: int = Field(1, ge=0, le=999)
    high: int = Field(32, ge=1, le=999)
    tries: int = Field(5, ge=1, le=20)
    num_demonstrations: int = Field(6000, ge=0, description="spread evenly over the numbers")


def rows(params: Params, seed: int) -> Split:
    """Each number once for training and once for evaluation, and games of the player."""
    numbers = list(range(params.low, params.high + 1))
    stream(seed, "data", "guess", "order").shuffle(numbers)
    rng = stream(seed, "data", "guess", "noise")
    shown = [play(params, numbers[i % len(numbers)], rng)[0] for i in range(params.num_demonstrations)]
    train, demonstrations = with_demonstrations([_row(params, n, "") for n in numbers], shown)
    return Split(train, [_row(params, n, "/evaluation") for n in numbers], demonstrations)


def play(params: Params, number: int, rng: random.Random) -> tuple[list[dict[str, Any]], Verdict | None]:
    """Return a game of the player that guesses uniformly inside the interval that the answers leave."""
    low, high, last = params.low, params.high, 0

    def player(observed: str) -> str:
        nonlocal low, high, last
        if observed == "higher":
            low = last + 1
        elif observed == "lower":
            high = last - 1
        last = rng.randint(low, high)
        return str(last)

    settings = guess.Params(low=params.low, high=params.high, tries=params.tries)
    return played(guess.environment(settings, Prompt("", "", "environment", number), 0, 0), player)


def _row(params: Params, number: int, ending: str) -> Row:
    return {
        "id": f"guess/{params.low}-{params.high}/{number}{ending}",
        "question": f"{params.low} to {params.high}?",
        "answer": str(number),
        "domain": "guess",
        "verifier": "environment",
        "environment": "guess",
    }
