r"""Sums with a scratchpad, verified as mathematics: `27+58=` -> `<think>7+8=15 2+5+1=8</think>\boxed{85}`.

The scratchpad works out one column after another, units first, with the carry that came into it. The space
of tasks is cut into train and evaluation by the unordered pair of operands: 58+27 is not in training when 27+58 is
held out.
"""

from __future__ import annotations

import math
import random
from typing import Literal

from pydantic import Field, model_validator

from verizero.pipeline.data.generators.base import GeneratorParams, Probability, Row, Split, slip, with_demonstrations
from verizero.pipeline.seeds import stream

Operator = Literal["+", "-"]
Task = tuple[Operator, int, int]


class Params(GeneratorParams):
    """Which sums, how many, and how wrong the demonstrations are."""

    digits: int = Field(2, ge=1, le=9, description="operands are 0 .. 10**digits - 1")
    forms: tuple[Operator, ...] = Field(("+",), min_length=1, description="operators; differences are never negative")
    num_train: int = Field(9000, ge=1, le=2_000_000)
    num_evaluation: int = Field(300, ge=0, le=200_000)
    num_demonstrations: int = Field(27_000, ge=0, description="spread evenly over the training tasks")
    noise: Probability = Field(
        0.3, description="chance that a column is off by one; the carry and the answer follow it"
    )
    num_text: int = Field(20_000, ge=0, description="lines of unlabelled text")
    text_noise: Probability = Field(0.6, description="as noise, in the unlabelled text")

    @model_validator(mode="after")
    def _fits(self) -> Params:
        if len(set(self.forms)) != len(self.forms):
            raise ValueError(f"forms must be distinct, got {list(self.forms)}")
        # Ordered pairs for sums, pairs with a >= b for differences.
        tasks = sum(100**self.digits if form == "+" else _num_pairs(self.digits) for form in self.forms)
        room = tasks - 2 * self.num_evaluation
        if self.num_train > room:
            raise ValueError(
                f"num_train must be <= {max(room, 0)} with digits={self.digits} and num_evaluation="
                f"{self.num_evaluation}, got {self.num_train}; lower one of the two or raise digits"
            )
        return self


def rows(params: Params, seed: int) -> Split:
    """Training, evaluation and demonstration rows; no unordered pair of operands is both trained on and held out."""
    tasks, held_out = _partition(params, seed)
    noise = stream(seed, "data", "arithmetic", "noise")
    shown = [
        demonstration(tasks[i % len(tasks)], params.digits, params.noise, noise)
        for i in range(params.num_demonstrations)
    ]
    train, demonstrations = with_demonstrations([_row(t) for t in tasks], shown)
    return Split(train, [_row(t) for t in held_out], demonstrations)


def text_lines(params: Params, seed: int) -> list[str]:
    """Lines of numbers, sums, scratchpads and boxes, mostly wrong, with training operands only."""
    train, _ = _partition(params, seed)
    rng = stream(seed, "data", "arithmetic", "text")
    return [_line(rng.choice(train), params, rng) for _ in range(params.num_text)]


def columns(
    task: Task, digits: int, noise: float = 0.0, rng: random.Random | None = None
) -> tuple[list[int], list[str]]:
    """For each of `digits` columns, units first, the sum with the carry (the difference with the borrow), and how it is
    written: "7+8=15", then "2+5+1=8"; "17-9=8" where ten was borrowed.

    With `noise`, a column is off by one with that chance, and later columns use the wrong number.
    """
    operator, a, b = task
    results, written, carry = [], [], 0
    for _ in range(digits):
        a, x = divmod(a, 10)
        b, y = divmod(b, 10)
        # `low`: this column must borrow ten from the next one.
        low = operator == "-" and x < y + carry
        right = x + y + carry if operator == "+" else x + 10 * low - y - carry
        result = right if rng is None else slip(right, noise, rng)
        results.append(result)
        written.append(f"{x + 10 * low}{operator}{y}{f'{operator}1' if carry else ''}={result}")
        # The carry follows the written result, so a slip spreads as it would for a pupil.
        carry = int(result > 9) if operator == "+" else int(low)
    return results, written


def compose(scratchpad: list[int]) -> int:
    """The number that a scratchpad says: the last digit of every column, and the whole of the highest."""
    low: int = sum((column % 10) * 10**i for i, column in enumerate(scratchpad[:-1]))
    high: int = 10 ** (len(scratchpad) - 1)
    return low + scratchpad[-1] * high


def demonstration(task: Task, digits: int, noise: float, rng: random.Random) -> str:
    """A response to imitate: a wrong column leads to the wrong answer that follows from it."""
    results, written = columns(task, digits, noise, rng)
    return f"<think>{' '.join(written)}</think>\\boxed{{{compose(results)}}}"


def _num_pairs(digits: int) -> int:
    """Return the number of unordered pairs of operands."""
    size: int = 10**digits
    return size * (size + 1) // 2


def _pair(index: int) -> tuple[int, int]:
    """The unordered pair (low, high) of that number, counted by high and then by low."""
    # Inverts the triangular numbers, in whole numbers: a float would be off for 9 digits.
    high = (math.isqrt(8 * index + 1) - 1) // 2
    return index - high * (high + 1) // 2, high


def _partition(params: Params, seed: int) -> tuple[list[Task], list[Task]]:
    """Training and evaluation tasks: unordered pairs in a shuffled order, the first of them held out.

    Both orders of a training sum are training tasks; of a held-out sum, one order is asked and neither is trained on.
    """
    rng = stream(seed, "data", "arithmetic", "split")
    pairs = _num_pairs(params.digits)
    universe = range(pairs * len(params.forms))
    # The range is never expanded: 9 digits have some 10**17 pairs.
    keys = rng.sample(universe, min(len(universe), params.num_evaluation + params.num_train))
    orders: list[list[Task]] = []
    for key in keys:
        operator = params.forms[key // pairs]
        low, high = _pair(key % pairs)
        both: list[Task] = [(operator, high, low)]
        if operator == "+" and low != high:
            both.append((operator, low, high))
        orders.append(both)
    evaluation = [rng.choice(both) for both in orders[: params.num_evaluation]]
    train = [task for both in orders[params.num_evaluation :] for task in both]
    rng.shuffle(train)
    # Up to twice as many as wanted, because sums count in both orders.
    return train[: params.num_train], evaluation


def _line(task: Task, params: Params, rng: random.Random) -> str:
    operator, a, b = task
    kind = rng.randrange(8)
    if kind == 0:
        start = rng.randrange(10**params.digits)
        return " ".join(str(start + i) for i in range(rng.randint(3, 8)))
    # Each column is replaced alone, so the number looks like a sum without being one.
    wrong = compose(
        [rng.randrange(10) if rng.random() < params.text_noise else c for c in columns(task, params.digits)[0]]
    )
    if kind == 1:
        return f"{a}{operator}{b}={wrong}"
    if kind == 2:
        return f"<think>{a} {b}</think>\\boxed{{{wrong}}}"
    return f"{a}{operator}{b}={demonstration(task, params.digits, params.text_noise, rng)}"


def _row(task: Task) -> Row:
    operator, a, b = task
    return {
        "id": f"arithmetic/{a}{operator}{b}",
        "question": f"{a}{operator}{b}=",
        "answer": str(a + b if operator == "+" else a - b),
        "domain": "arithmetic",
        "verifier": "math",
    }
