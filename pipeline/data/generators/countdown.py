"""Countdown with room to search: `07 12 03 05:09<think>` -> `07+05=12n,05+03=08n,12-03=09y</think>12-03`.

Numbers and a target are given; the answer is a sum or difference of some of the numbers that makes the target. A
scratchpad tries numbers, in any order, with signs. It writes the total after each, and at the end whether it is right:
y or n. That is easy to see, which numbers lead there is not, so a policy gains by trying again. Demonstrations try at
random, and many give up after a failure: then their answer is the last that was tried, and wrong. Their games have few
numbers. Games with more, where fewer attempts succeed, are for RL alone, in the domain `countdown_deeper`.
"""

from __future__ import annotations

import random
from math import comb

from pydantic import Field, model_validator

from verizero.pipeline.data.generators.base import GeneratorParams, Probability, Row, Split, with_demonstrations
from verizero.pipeline.seeds import stream

Task = tuple[tuple[int, ...], int]
"""The numbers of a game in the order in which they are written, and its target."""
Terms = list[int]
"""Numbers of a game with their signs; the first is positive, and no total from the left is negative."""

FEWEST = 2
SHOWN, DEEPER = "countdown", "countdown_deeper"
"""Domains of the tasks with as many numbers as demonstrations have, and with more."""


class Params(GeneratorParams):
    """Size and number of the tasks, and how long the demonstrations search."""

    largest: int = Field(20, ge=10, le=49, description="numbers are 1 to this, none twice in a game")
    shown_depth: int = Field(4, ge=FEWEST, le=10, description="demonstrations have 2 to so many numbers")
    depth: int = Field(6, ge=FEWEST, le=10, description="games have 2 to so many numbers")
    terms: int = Field(2, ge=FEWEST, le=10, description="a target is made of 2 to so many of the numbers")
    num_train: int = Field(6000, ge=1, le=100_000, description="tasks, as many of each depth as of another")
    num_evaluation: int = Field(256, ge=0, description="held-out tasks, as many of each depth as of another")
    num_demonstrations: int = Field(60_000, ge=0, description="spread evenly over the training tasks that are shown")
    persist: Probability = Field(
        0.5, description="chance that a demonstration tries again after a failure; else it gives up"
    )

    @model_validator(mode="after")
    def _fits(self) -> Params:
        if self.shown_depth > self.depth:
            raise ValueError(f"must be shown_depth <= depth, got shown_depth={self.shown_depth}, depth={self.depth}")
        pairs, held_out = comb(self.largest, FEWEST), _share(self.num_evaluation, FEWEST, self.depth)
        if held_out >= pairs:
            raise ValueError(
                f"num_evaluation={self.num_evaluation} takes {held_out} games of two numbers, and largest="
                f"{self.largest} has {pairs} pairs; set num_evaluation < {pairs * (self.depth - FEWEST + 1)}, or raise "
                "largest, so that some are left for training"
            )
        return self


def rows(params: Params, seed: int) -> Split:
    """Training, evaluation and demonstration rows; no task is both trained on and held out."""
    train, held_out = _partition(params, seed)
    shallow = [t for t in train if len(t[0]) <= params.shown_depth]
    deeper = [t for t in train if len(t[0]) > params.shown_depth]
    rng = stream(seed, "data", "countdown", "attempts")
    shown = [demonstration(shallow[i % len(shallow)], params, rng) for i in range(params.num_demonstrations)]
    first, demonstrations = with_demonstrations([_row(t, params) for t in shallow], shown)
    return Split([*first, *(_row(t, params) for t in deeper)], [_row(t, params) for t in held_out], demonstrations)


def demonstration(task: Task, params: Params, rng: random.Random) -> str:
    """Return a response to imitate: random attempts until one succeeds or the search is given up."""
    numbers, target = task
    attempts = [guess(numbers, params.terms, rng)]
    while sum(attempts[-1]) != target and rng.random() < params.persist:
        attempts.append(guess(numbers, params.terms, rng))
    search = ",".join(written(attempt) + "ny"[sum(attempt) == target] for attempt in attempts)
    return f"{search}</think>{expression(attempts[-1])}"


def guess(numbers: tuple[int, ...], most: int, rng: random.Random) -> Terms:
    """Return two to `most` of the numbers in a random order, with random signs."""
    chosen = rng.sample(numbers, rng.randint(FEWEST, min(most, len(numbers))))
    terms = chosen[:1]
    for number in chosen[1:]:
        negative = rng.random() < 0.5 and sum(terms) >= number
        terms.append(-number if negative else number)
    return terms


def expression(terms: Terms) -> str:
    """Return the terms as an expression: `12+05`."""
    return f"{terms[0]:02d}" + "".join(f"{term:+03d}" for term in terms[1:])


def written(terms: Terms) -> str:
    """Return the terms with the total after each: `12+05=17`."""
    text, total = f"{terms[0]:02d}", terms[0]
    for term in terms[1:]:
        total += term
        text += f"{term:+03d}={total:02d}"
    return text


def _partition(params: Params, seed: int) -> tuple[list[Task], list[Task]]:
    """Return training and evaluation tasks, in a shuffled order, with about equally many of each depth in both."""
    train: list[Task] = []
    held_out: list[Task] = []
    for depth in range(FEWEST, params.depth + 1):
        # A stream of its own: the held-out tasks of a depth do not depend on how many are trained on.
        rng = stream(seed, "data", "countdown", f"depth{depth}")
        num_held_out = _share(params.num_evaluation, depth, params.depth)
        wanted = num_held_out + _share(params.num_train, depth, params.depth)
        made: dict[tuple[frozenset[int], int], Task] = {}
        # there are few games of two numbers: those that chance has not found after so many draws are left out
        for _ in range(4 * wanted):
            numbers = tuple(rng.sample(range(1, params.largest + 1), depth))
            target = sum(guess(numbers, params.terms, rng))
            if target not in (0, *numbers):
                made.setdefault((frozenset(numbers), target), (numbers, target))
            if len(made) == wanted:
                break
        tasks = list(made.values())
        held_out += tasks[:num_held_out]
        train += tasks[num_held_out:]
    order = stream(seed, "data", "countdown", "order")
    order.shuffle(held_out)
    order.shuffle(train)
    return train, held_out


def _share(number: int, depth: int, most: int) -> int:
    """Return one depth's part of a number of tasks; the first depths take what does not divide."""
    depths = most - FEWEST + 1
    return number // depths + (depth - FEWEST < number % depths)


def _row(task: Task, params: Params) -> Row:
    numbers, target = task
    question = f"{' '.join(f'{number:02d}' for number in numbers)}:{target:02d}<think>"
    return {
        "id": f"countdown/{'_'.join(map(str, numbers))}={target}",
        "question": question,
        "answer": {"numbers": list(numbers), "target": target, "use_all": False},
        "domain": SHOWN if len(numbers) <= params.shown_depth else DEEPER,
        "verifier": "countdown",
    }
