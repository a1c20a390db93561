"""Pointers to follow through files: `open b` -> `<read b>` see k `<read k>` see d `<read d>` 73 `73`.

For the environment `files`. Each task has several chains of files, of which the question names the beginning of one.
In the demonstrations the player slips at each hop with chance `noise`: it then reads the file of another chain, and
follows that one, so that it is right only if it never slips.
"""

from __future__ import annotations

import itertools
import random
import string
from dataclasses import dataclass
from typing import Any

from pydantic import Field, model_validator

from verizero.pipeline.data.generators._play import Words, played
from verizero.pipeline.data.generators.base import GeneratorParams, Probability, Row, Split, with_demonstrations
from verizero.pipeline.environments import files
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Prompt, Verdict


class Params(GeneratorParams):
    """The size of a task, how many there are, and how often the player slips."""

    hops: int = Field(3, ge=1, le=8, description="files to read; each but the last names the next")
    chains: int = Field(4, ge=2, le=13, description="of files, of which one leads to the answer")
    num_train: int = Field(4000, ge=1)
    num_evaluation: int = Field(200, ge=0)
    num_demonstrations: int = Field(6000, ge=0, description="spread evenly over the training tasks")
    noise: Probability = Field(0.28, description="chance of a slip at each hop; the player wins with (1 - noise)^hops")

    @model_validator(mode="after")
    def _fits(self) -> Params:
        if self.hops * self.chains > len(string.ascii_lowercase):
            raise ValueError(
                f"hops * chains must be <= 26, the letters that name files, got {self.hops} * {self.chains}"
            )
        return self


@dataclass(frozen=True, slots=True)
class Task:
    """Chains of files; the first is the one to follow.

    Example: Task((("b", "k", "d"), ("c", "a", "e")), (73, 12))
    """

    chains: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...]

    @property
    def texts(self) -> dict[str, str]:
        """The text of each file."""
        texts = {}
        for chain, number in zip(self.chains, self.numbers, strict=True):
            texts.update({name: f"see {following}" for name, following in itertools.pairwise(chain)})
            texts[chain[-1]] = str(number)
        return dict(sorted(texts.items()))


def rows(params: Params, seed: int) -> Split:
    """Training, evaluation and demonstration rows; no task is in two of them."""
    rng = stream(seed, "data", "files", "split")
    tasks: dict[Task, None] = {}
    while len(tasks) < params.num_train + params.num_evaluation:
        tasks.setdefault(_task(params, rng))
    held_out, train_tasks = list(tasks)[: params.num_evaluation], list(tasks)[params.num_evaluation :]
    noise = stream(seed, "data", "files", "noise")
    shown = [play(params, train_tasks[i % len(train_tasks)], noise)[0] for i in range(params.num_demonstrations)]
    train, demonstrations = with_demonstrations([_row(t) for t in train_tasks], shown)
    return Split(train, [_row(t) for t in held_out], demonstrations)


def play(params: Params, task: Task, rng: random.Random) -> tuple[list[dict[str, Any]], Verdict | None]:
    """Return the player's turns and the verdict."""
    chain, hop = 0, 0

    def player(observed: str) -> Words:
        nonlocal chain, hop
        if hop == params.hops:
            return observed
        if rng.random() < params.noise:
            # Never back to the first chain, which would undo an earlier slip.
            chain = rng.choice([c for c in range(1, params.chains) if c != chain] or [chain])
        hop += 1
        return "read", {"name": task.chains[chain][hop - 1]}

    reference = _row(task)["answer"]
    return played(files.environment(files.Params(), Prompt("", "", "environment", reference), 0, 0), player)


def _task(params: Params, rng: random.Random) -> Task:
    names = rng.sample(string.ascii_lowercase, params.hops * params.chains)
    chains = tuple(tuple(names[i * params.hops : (i + 1) * params.hops]) for i in range(params.chains))
    return Task(chains, tuple(rng.sample(range(10, 100), params.chains)))


def _row(task: Task) -> Row:
    return {
        "id": f"files/{' '.join(''.join(c) + str(n) for c, n in zip(task.chains, task.numbers, strict=True))}",
        "question": f"open {task.chains[0][0]}",
        "answer": {"files": task.texts, "answer": str(task.numbers[0])},
        "domain": "files",
        "verifier": "environment",
        "environment": "files",
    }
