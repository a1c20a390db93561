"""Queries on tables whose names must be asked for: `sum col 2 where col 1 = 3` -> `<tables>` pets(kind, age)
`select sum(age) from pets where kind=3`.

For the environment `sql`. In the demonstrations the player slips in each of the two turns with chance `noise`: it
writes the query without asking, with names that the database does not have; or it takes a wrong name into the query.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from verizero.pipeline.data.generators.base import (
    GeneratorParams,
    Probability,
    Row,
    Split,
    Words,
    played,
    with_demonstrations,
)
from verizero.pipeline.environments import sql
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Prompt, Verdict

NAMES = (
    "age", "bag", "book", "box", "car", "city", "cup", "day", "dog", "door", "egg", "farm", "fish", "game", "hat",
    "kind", "lake", "map", "moon", "park", "pen", "pet", "road", "room", "ship", "shop", "size", "sky", "tree", "year",
)  # fmt: skip
ACTS = ("sum", "max", "min", "count")
NUM_ROWS = 6


class Params(GeneratorParams):
    """The number of tasks, and how often the player slips."""

    num_train: int = Field(4000, ge=1)
    num_evaluation: int = Field(200, ge=0)
    num_demonstrations: int = Field(6000, ge=0, description="spread evenly over the training tasks")
    noise: Probability = Field(0.3, description="chance of a slip in each turn; the player wins with (1 - noise)^2")


@dataclass(frozen=True, slots=True)
class Task:
    """A table of two columns, and a question about one of them for rows of which the other has a value.

    Example: Task("pets", ("kind", "age"), "sum", 1, 3, (first, second))
    """

    table: str
    columns: tuple[str, str]
    act: str
    place: int
    value: int
    setups: tuple[str, ...]

    def query(self, table: str, column: str, other: str) -> str:
        """Return the query with these names."""
        return f"select {self.act}({column}) from {table} where {other}={self.value}"

    @property
    def names(self) -> tuple[str, str, str]:
        """The table, the column that is asked for, and the other."""
        return self.table, self.columns[self.place], self.columns[1 - self.place]


def rows(params: Params, seed: int) -> Split:
    """Training, evaluation and demonstration rows; no table with its columns is both trained on and held out."""
    rng = stream(seed, "data", "sql", "split")
    tasks: dict[tuple[str, ...], Task] = {}
    while len(tasks) < params.num_train + params.num_evaluation:
        task = _task(rng)
        tasks.setdefault((task.table, *sorted(task.columns)), task)
    held_out, train_tasks = list(tasks.values())[: params.num_evaluation], list(tasks.values())[params.num_evaluation :]
    noise = stream(seed, "data", "sql", "noise")
    shown = [play(params, train_tasks[i % len(train_tasks)], noise)[0] for i in range(params.num_demonstrations)]
    train, demonstrations = with_demonstrations([_row(t) for t in train_tasks], shown)
    return Split(train, [_row(t) for t in held_out], demonstrations)


def play(params: Params, task: Task, rng: random.Random) -> tuple[list[dict[str, Any]], Verdict | None]:
    """Return the player's turns and the verdict."""
    return answered(task, _turns(params, task, rng))


def answered(task: Task, words: list[Words]) -> tuple[list[dict[str, Any]], Verdict | None]:
    """Return the turns of a player that says these words, and the verdict."""
    coming = iter(words)
    environment = sql.environment(sql.Params(), Prompt("", "", "environment", _row(task)["answer"]), 0, 0)
    return played(environment, lambda _: next(coming))


def _turns(params: Params, task: Task, rng: random.Random) -> list[Words]:
    names = list(task.names)
    others = [n for n in NAMES if n not in names]
    if rng.random() < params.noise:
        table, column, other = rng.sample(others, 3)
        return [task.query(table, column, other)]
    if rng.random() < params.noise:
        names[rng.randrange(3)] = rng.choice(others)
    table, column, other = names
    return [("tables", {}), task.query(table, column, other)]


def _task(rng: random.Random) -> Task:
    table, first, second = rng.sample(NAMES, 3)
    act, place, value = rng.choice(ACTS), rng.randrange(2), rng.randrange(1, 10)
    setups = tuple(_setup(table, (first, second), place, value, rng) for _ in range(2))
    return Task(table, (first, second), act, place, value, setups)


def _setup(table: str, columns: tuple[str, str], place: int, value: int, rng: random.Random) -> str:
    data = [[rng.randrange(1, 10), rng.randrange(1, 10)] for _ in range(NUM_ROWS)]
    # Some rows have the value that is asked for.
    for row in data[: rng.randrange(1, 4)]:
        row[1 - place] = value
    rng.shuffle(data)
    values = ", ".join(f"({a}, {b})" for a, b in data)
    return f"create table {table}({', '.join(columns)}); insert into {table} values {values};"


def _row(task: Task) -> Row:
    return {
        "id": f"sql/{task.table}/{task.columns[0]}/{task.columns[1]}",
        "question": f"{task.act} col {task.place + 1} where col {2 - task.place} = {task.value}",
        "answer": {"setup": list(task.setups), "query": task.query(*task.names)},
        "domain": "sql",
        "verifier": "environment",
        "environment": "sql",
    }
