"""Programs that only a failing test tells: `f(0)=7` -> `1*x+7`, f(100)=407 not 107 -> `4*x+7`, each in a `def f(x)`.

For the environment `repair`. The question shows the intercept alone. The first test is at a power of ten above all
intercepts, so that its value has the slope in front of the intercept's digits: it is read off, with no arithmetic. Half
of all functions have the slope 1, the others 2 to 9, so without the tests three tries are right with chance 0.625. In
the demonstrations the first try has the slope 1, and with chance `noise` a wrong intercept. A later try reads the slope
off the failing test with chance `heeds`, then again with a slip by chance `noise`; otherwise it takes any slope from 2
to 9.
"""

from __future__ import annotations

import random
from typing import Any

from pydantic import Field, model_validator

from verizero.pipeline.data.generators.base import GeneratorParams, Probability, Row, Split, with_demonstrations
from verizero.pipeline.seeds import stream

Task = tuple[int, int]
"""Slope and intercept."""
OTHERS = range(2, 10)
"""Slopes besides 1. Each intercept comes once with each of them, and as often with 1."""


class Params(GeneratorParams):
    """The number of functions, and how the player goes wrong."""

    num_intercepts: int = Field(100, ge=2, le=1000, description="0, 1, ...; each gives 16 tasks")
    num_held_out: int = Field(20, ge=0, description="intercepts whose tasks are for evaluation alone")
    num_tests: int = Field(6, ge=2, le=50, description="at the power of ten above all intercepts, then at 1, 2, ...")
    tries: int = Field(3, ge=1, le=10, description="as in the environment")
    num_demonstrations: int = Field(6000, ge=0, description="spread evenly over the training tasks")
    noise: Probability = Field(0.18, description="chance that a number is off by one")
    heeds: Probability = Field(0.4, description="chance that a later try heeds the failing test")

    @model_validator(mode="after")
    def _fits(self) -> Params:
        if self.num_held_out >= self.num_intercepts:
            raise ValueError(
                f"num_held_out must be < num_intercepts, got {self.num_held_out} >= {self.num_intercepts}; "
                "training needs some"
            )
        return self


def rows(params: Params, seed: int) -> Split:
    """Training, evaluation and demonstration rows; no intercept is both trained on and held out."""
    rng = stream(seed, "data", "repair", "split")
    intercepts = list(range(params.num_intercepts))
    rng.shuffle(intercepts)
    held_out = _tasks(intercepts[: params.num_held_out], rng)
    tasks = _tasks(intercepts[params.num_held_out :], rng)
    noise = stream(seed, "data", "repair", "noise")
    shown = [play(params, tasks[i % len(tasks)][0], noise)[0] for i in range(params.num_demonstrations)]
    train, demonstrations = with_demonstrations([_row(params, *t) for t in tasks], shown)
    return Split(train, [_row(params, *t) for t in held_out], demonstrations)


def play(params: Params, task: Task, rng: random.Random) -> tuple[list[dict[str, Any]], bool]:
    """Return the player's turns with the environment's answers, and True if the last program is right.

    The answers are those that the environment gives, without the cost of running each program.
    """
    messages: list[dict[str, Any]] = []
    intercept = task[1]
    written = (1, _slip(intercept, params.noise, rng))
    for number in range(params.tries):
        messages.append({"role": "assistant", "content": program(*written)})
        failing = next((x for x in _tested(params) if _value(task, x) != _value(written, x)), None)
        if failing is None:
            return messages, True
        if number == params.tries - 1:
            break
        wanted = _value(task, failing)
        messages.append({"role": "user", "content": f"f({failing})={wanted} not {_value(written, failing)}"})
        if rng.random() < params.heeds:
            written = (_slip((wanted - intercept) // failing, params.noise, rng), intercept)
        else:
            written = (rng.choice(OTHERS), intercept)
    return messages, False


def program(slope: int, intercept: int) -> str:
    """Return the program of a function."""
    return f"def f(x): return {slope}*x+{intercept}"


def _tested(params: Params) -> list[int]:
    """Return the arguments of the tests, in order."""
    above: int = 10 ** len(str(params.num_intercepts - 1))
    return [above, *range(1, params.num_tests)]


def _value(task: Task, x: int) -> int:
    return task[0] * x + task[1]


def _slip(number: int, noise: float, rng: random.Random) -> int:
    """Return the number, or with chance `noise` a neighbour of it that is no less than 0."""
    if rng.random() >= noise:
        return number
    return number + (rng.choice((-1, 1)) if number else 1)


def _tasks(intercepts: list[int], rng: random.Random) -> list[tuple[Task, int]]:
    """Return tasks, each with the number of its visit, in a shuffled order."""
    tasks = [((slope, b), 0) for b in intercepts for slope in OTHERS]
    tasks += [((1, b), visit) for b in intercepts for visit in range(len(OTHERS))]
    rng.shuffle(tasks)
    return tasks


def _row(params: Params, task: Task, visit: int) -> Row:
    slope, intercept = task
    tests = [{"args": [x], "expected": _value(task, x)} for x in _tested(params)]
    return {
        "id": f"repair/{slope}*x+{intercept}{f'/{visit}' if visit else ''}",
        "question": f"f(0)={intercept}",
        "answer": {"fn": "f", "tests": tests},
        "domain": "repair",
        "verifier": "environment",
        "environment": "repair",
    }
