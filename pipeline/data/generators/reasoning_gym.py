"""Tasks of the package reasoning-gym, for the verifier `reasoning_gym`: arithmetic, algorithms, logic, games.

A row's answer is the whole task, so that the package's own scorer grades it in any process. No question occurs twice,
so none is both trained on and held out. The package runs in a process of its own, with a fixed order of its sets. It
is the extra `gym`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from verizero.pipeline.data.generators.base import GeneratorParams, Row, Split
from verizero.pipeline.errors import DataError
from verizero.pipeline.seeds import derive, stream

INSTALL = "python -m pip install 'reasoning-gym>=0.1.25,<0.2'"
PROGRAM = Path(__file__).with_name("_gym_tasks.py")
FIXED = ("seed", "size")


class Part(BaseModel):
    """A data set of the package, and how hard it is."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(description="of the data set, e.g. chain_sum")
    level: int | None = Field(
        None, ge=0, description="of the package's curriculum, for all that makes it hard; 0: easiest"
    )
    config: dict[str, Any] = Field({}, description="the data set's own fields, which win over those of the level")
    weight: float = Field(1.0, gt=0, description="share of the rows")

    @field_validator("config")
    @classmethod
    def _free(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := [key for key in FIXED if key in value]:
            raise ValueError(f"{taken[0]} is made from the recipe's seed and the number of rows; leave it out")
        return value


class Params(GeneratorParams):
    """The data sets, and how many tasks."""

    datasets: tuple[Part, ...] = Field((Part(name="chain_sum"),), min_length=1)
    num_train: int = Field(1000, ge=1)
    num_evaluation: int = Field(100, ge=0)
    timeout_s: float = Field(600, gt=0, description="for making all tasks")


def rows(params: Params, seed: int) -> Split:
    """All rows by the weights of their data sets, shuffled. Raises: DataError if the package or a part fails."""
    weights = [part.weight for part in params.datasets]
    train, held_out = shares(params.num_train, weights), shares(params.num_evaluation, weights)
    asked = [
        {
            "name": part.name,
            "level": part.level,
            "config": part.config,
            "count": train[i] + held_out[i],
            "seed": derive(seed, "data", "reasoning_gym", part.name, i) % 2**31,
        }
        for i, part in enumerate(params.datasets)
    ]
    made = _made({"parts": asked}, params.timeout_s)
    split = Split([], [], [])
    for i, (part, tasks) in enumerate(zip(params.datasets, made, strict=True)):
        for number, task in enumerate(tasks):
            (split.evaluation if number < held_out[i] else split.train).append(_row(part, i, number, task))
    stream(seed, "data", "reasoning_gym", "train").shuffle(split.train)
    stream(seed, "data", "reasoning_gym", "evaluation").shuffle(split.evaluation)
    return split


def shares(total: int, weights: list[float]) -> list[int]:
    """Return whole numbers that sum to `total`, in the ratio of the weights: the largest remainders are rounded up."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [int(x) for x in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_rest[: total - sum(counts)]:
        counts[i] += 1
    return counts


def _made(request: dict[str, Any], timeout_s: float) -> list[list[dict[str, Any]]]:
    """Return the tasks of each part, made in another process."""
    # Some data sets walk through sets of texts, whose order is another one in each process.
    environ = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(
            [sys.executable, "-P", str(PROGRAM)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environ,
        )
    except subprocess.TimeoutExpired as exc:
        raise DataError(
            f"reasoning-gym took more than {timeout_s:g} s; raise timeout_s, or ask for fewer tasks"
        ) from exc
    if ended.returncode != 0:
        raise DataError(f"reasoning-gym ended with status {ended.returncode}: {ended.stderr.strip()[-300:]}")
    reply = json.loads(ended.stdout)
    if "missing" in reply:
        raise DataError(f"reasoning-gym is not installed ({reply['missing']}); run: {INSTALL}")
    if "error" in reply:
        raise DataError(str(reply["error"]))
    tasks: list[list[dict[str, Any]]] = reply["tasks"]
    return tasks


def _row(part: Part, place: int, number: int, task: dict[str, Any]) -> Row:
    return {
        "id": f"reasoning_gym/{place}-{part.name}/{number}",
        "question": task["question"],
        "answer": {"dataset": part.name, "entry": task},
        "domain": part.name,
        "verifier": "reasoning_gym",
    }
