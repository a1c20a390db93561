"""Functions one after another, with room to think: `57ceb=` -> `<think>c75 b77</think>77`.

A letter is a function of the numbers 0 to 99, written after the number that it is applied to; letters are applied from
left to right, none twice in a task. A step of the scratchpad names a letter and the number that it leads to. It may
pass over letters, and then takes them all at once, so a policy chooses how long it thinks. Demonstrations often do so,
and they are of tasks with few letters. Tasks with more letters are for RL alone, in the domain `composition_deeper`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from pydantic import Field, model_validator

from pipeline.data.generators.base import GeneratorParams, Probability, Row, Split, slip, with_demonstrations
from pipeline.seeds import stream

Task = tuple[int, str]
"""The number that a task begins with, and its letters in the order in which they are applied."""

SIZE = 100
FUNCTIONS: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "a": lambda tens, units: (tens + 1, units),
    "b": lambda tens, units: (tens, units + 3),
    "c": lambda tens, units: (units, tens),
    "d": lambda tens, units: (9 - tens, units),
    "e": lambda tens, units: (tens, 9 - units),
    "f": lambda tens, units: (3 * tens, units),
    "g": lambda tens, units: (tens, 7 * units),
    "h": lambda tens, units: (tens + units, units),
    "i": lambda tens, units: (tens, units + tens),
    "j": lambda tens, units: (tens + 5, units + 5),
}
"""Letter -> a function of the two digits of a number, modulo 10.

Each is one to one, so that a wrong number does not lead to the right answer.
"""
SHOWN, DEEPER = "composition", "composition_deeper"
"""Domains of the tasks with as many letters as demonstrations have, and with more."""


class Params(GeneratorParams):
    """Depth and number of the tasks, and the jumps of the demonstrations."""

    num_functions: int = Field(8, ge=1, le=len(FUNCTIONS), description="letters a, b, ... in use")
    shown_depth: int = Field(3, ge=1, le=len(FUNCTIONS), description="demonstrations have 1 to so many letters")
    depth: int = Field(8, ge=1, le=len(FUNCTIONS), description="tasks have 1 to so many letters")
    num_train: int = Field(8000, ge=1, description="tasks, as many of each depth as of another")
    num_evaluation: int = Field(256, ge=0, description="held-out tasks, as many of each depth as of another")
    num_demonstrations: int = Field(40_000, ge=0, description="spread evenly over the training tasks that are shown")
    jump: Probability = Field(
        0.5, description="chance that a step of a demonstration takes one more letter, asked again after each"
    )
    noise: Probability = Field(
        0.1, description="chance that a number in a demonstration is off by one; later ones use it"
    )

    @model_validator(mode="after")
    def _fits(self) -> Params:
        if not self.shown_depth <= self.depth <= self.num_functions:
            raise ValueError(
                "must be shown_depth <= depth <= num_functions, since no letter occurs twice in a task; got "
                f"shown_depth={self.shown_depth}, depth={self.depth}, num_functions={self.num_functions}"
            )
        least, most = self.num_functions * SIZE, _share(self.num_evaluation, 1, self.depth)
        if most >= least:
            raise ValueError(
                f"num_evaluation={self.num_evaluation} takes {most} tasks of one letter, of which there are {least}; "
                f"set num_evaluation < {least * self.depth}, so that some are left for training"
            )
        return self


def rows(params: Params, seed: int) -> Split:
    """Training, evaluation and demonstration rows; no task is both trained on and held out."""
    train, held_out = _partition(params, seed)
    shallow = [t for t in train if len(t[1]) <= params.shown_depth]
    deeper = [t for t in train if len(t[1]) > params.shown_depth]
    rng = stream(seed, "data", "composition", "noise")
    shown = [demonstration(shallow[i % len(shallow)], params, rng) for i in range(params.num_demonstrations)]
    first, demonstrations = with_demonstrations([_row(t, params) for t in shallow], shown)
    return Split([*first, *(_row(t, params) for t in deeper)], [_row(t, params) for t in held_out], demonstrations)


def value(task: Task) -> int:
    """Return the number that a task ends with."""
    number, letters = task
    for letter in letters:
        tens, units = FUNCTIONS[letter](*divmod(number, 10))
        number = tens % 10 * 10 + units % 10
    return number


def demonstration(task: Task, params: Params, rng: random.Random) -> str:
    """Return a response to imitate, with jumps and slips; a slip leads to the wrong answer that follows from it."""
    number, letters = task
    written: list[str] = []
    begin = 0
    while begin < len(letters):
        end = begin + 1
        while end < len(letters) and rng.random() < params.jump:
            end += 1
        number = min(slip(value((number, letters[begin:end])), params.noise, rng), SIZE - 1)
        written.append(f"{letters[end - 1]}{number:02d}")
        begin = end
    return f"<think>{' '.join(written)}</think>{number:02d}"


def _partition(params: Params, seed: int) -> tuple[list[Task], list[Task]]:
    """Return training and evaluation tasks, in a shuffled order; depths take turns, as far as they have tasks left."""
    letters = list(FUNCTIONS)[: params.num_functions]
    train: list[Task] = []
    held_out: list[Task] = []
    for depth in range(1, params.depth + 1):
        # A stream of its own: the held-out tasks of a depth do not depend on how many are trained on.
        rng = stream(seed, "data", "composition", f"depth{depth}")
        room = math.perm(len(letters), depth) * SIZE
        num_held_out = _share(params.num_evaluation, depth, params.depth)
        num_train = min(_share(params.num_train, depth, params.depth), room - num_held_out)
        made: dict[Task, None] = {}
        while len(made) < num_held_out + num_train:
            made[(rng.randrange(SIZE), "".join(rng.sample(letters, depth)))] = None
        tasks = list(made)
        held_out += tasks[:num_held_out]
        train += tasks[num_held_out:]
    order = stream(seed, "data", "composition", "order")
    order.shuffle(held_out)
    order.shuffle(train)
    return train, held_out


def _share(number: int, depth: int, depths: int) -> int:
    """Return one depth's part of a number of tasks; the first depths take what does not divide."""
    return number // depths + (depth <= number % depths)


def _row(task: Task, params: Params) -> Row:
    number, letters = task
    question = f"{number:02d}{letters}="
    return {
        "id": f"composition/{number:02d}{letters}",
        "question": question,
        "answer": str(value(task)),
        "domain": SHOWN if len(letters) <= params.shown_depth else DEEPER,
        "verifier": "math",
    }
