"""Products and sums too large for the head: `27*58+14=` -> `<mul 27 58>` 1566 `<add 1566 14>` 1580 `1580`.

For the environment `calculator`. In the demonstrations the player uses the tool with chance `uses`, and is then right;
otherwise it answers at once, always wrong by up to 99.
"""

from __future__ import annotations

import random
from typing import Any

from pydantic import Field, model_validator

from verizero.pipeline.data.generators.base import (
    GeneratorParams,
    Probability,
    Row,
    Split,
    Words,
    played,
    with_demonstrations,
)
from verizero.pipeline.environments import calculator
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Prompt, Verdict

Task = tuple[int, int, int]
LOW, HIGH = 10, 99
SIZE = HIGH - LOW + 1


class Params(GeneratorParams):
    """The number of tasks, and how often the player uses the tool."""

    num_train: int = Field(4000, ge=1)
    num_evaluation: int = Field(200, ge=0)
    num_demonstrations: int = Field(6000, ge=0, description="spread evenly over the training tasks")
    uses: Probability = Field(0.4, description="chance that the player uses the tool, which is also its chance to win")

    @model_validator(mode="after")
    def _fits(self) -> Params:
        room = SIZE * (SIZE + 1) // 2 * SIZE
        if self.num_train + self.num_evaluation > room:
            raise ValueError(
                f"num_train + num_evaluation must be <= {room}, the number of tasks, got {self.num_train} + "
                f"{self.num_evaluation}; lower one of the two"
            )
        return self


def rows(params: Params, seed: int) -> Split:
    """Training, evaluation and demonstration rows; no product and sum is in two of them, in either order."""
    rng = stream(seed, "data", "calculator", "split")
    pairs = SIZE * (SIZE + 1) // 2
    tasks = [
        _task(key, pairs, rng) for key in rng.sample(range(pairs * SIZE), params.num_train + params.num_evaluation)
    ]
    held_out, train_tasks = tasks[: params.num_evaluation], tasks[params.num_evaluation :]
    noise = stream(seed, "data", "calculator", "noise")
    shown = [play(params, train_tasks[i % len(train_tasks)], noise)[0] for i in range(params.num_demonstrations)]
    train, demonstrations = with_demonstrations([_row(t) for t in train_tasks], shown)
    return Split(train, [_row(t) for t in held_out], demonstrations)


def play(params: Params, task: Task, rng: random.Random) -> tuple[list[dict[str, Any]], Verdict | None]:
    """Return the player's turns and the verdict."""
    a, b, c = task
    turns: list[Words] = [("mul", {"a": a, "b": b}), ("add", {"a": a * b, "b": c}), str(a * b + c)]
    if rng.random() >= params.uses:
        turns = [str(a * b + c + rng.choice((-1, 1)) * rng.randint(1, 99))]
    coming = iter(turns)
    prompt = Prompt("", "", "environment", str(a * b + c))
    return played(calculator.environment(calculator.Params(), prompt, 0, 0), lambda _: next(coming))


def _task(key: int, pairs: int, rng: random.Random) -> Task:
    index, c = key % pairs, key // pairs
    high = 0
    while index > high:
        index -= high + 1
        high += 1
    a, b = (LOW + index, LOW + high) if rng.random() < 0.5 else (LOW + high, LOW + index)
    return a, b, LOW + c


def _row(task: Task) -> Row:
    a, b, c = task
    return {
        "id": f"calculator/{a}*{b}+{c}",
        "question": f"{a}*{b}+{c}=",
        "answer": str(a * b + c),
        "domain": "calculator",
        "verifier": "environment",
        "environment": "calculator",
    }
