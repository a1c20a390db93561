"""The log of a run as a script of TRL reads it, under the names of TRL where a number is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from verizero.pipeline.library.trl.config import GRPOConfig
from verizero.pipeline.library.trl.schedule import Schedule
from verizero.pipeline.report.files import read_run
from verizero.pipeline.report.row_types import EvaluationRow

NAMES = {
    "loss/total": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "reward/sampled": "reward",
    "kl/k3": "kl",
    "entropy": "entropy",
    "length/mean": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
    "clip_fraction/low": "clip_ratio/low_mean",
    "clip_fraction/high": "clip_ratio/high_mean",
}
"""Name of a metric here -> its name in TRL. `reward/part/f` becomes `rewards/f/mean`; others keep their names."""
HELD_OUT = {"length": "completions/mean_length", "truncated": "completions/clipped_ratio"}
"""Held-out measure -> its name in TRL, behind `eval_`."""
PART = "reward/part/"


class TrainOutput(NamedTuple):
    """The result of `train`."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


@dataclass(slots=True)
class TrainerState:
    """The part of TRL's trainer state that is known after a run."""

    global_step: int = 0
    log_history: list[dict[str, Any]] = field(default_factory=list)


def history_of(folder: Path, args: GRPOConfig, schedule: Schedule) -> list[dict[str, Any]]:
    """Return the log: means over `logging_steps` updates, or one batch if it has more, and evaluations."""
    run = read_run(folder)
    every = args.logging_steps * schedule.total_updates if args.logging_steps < 1 else args.logging_steps
    batches = max(1, round(every / schedule.updates))
    rows: list[dict[str, Any]] = []
    waiting: list[Mapping[str, float]] = []
    for row in run.steps:
        waiting.append(row.metrics)
        if row.step % batches == 0 or row is run.steps[-1] or (row.step == 1 and args.logging_first_step):
            rows.append({**_means(waiting), **_at(row.step, schedule)})
            waiting = []
    rows += [{**held_out_of(row), **_at(row.step, schedule)} for row in run.evaluations]
    return sorted(rows, key=lambda r: int(r["step"]))


def held_out_of(row: EvaluationRow) -> dict[str, float]:
    """Return the measures of an evaluation, behind `eval_` and, of several data sets, the name of each."""
    made = {}
    for domain, measures in row.domains.items():
        prefix = "eval_" if len(row.domains) == 1 else f"eval_{domain}_"
        for name, measure in measures.items():
            value = measure.get("value") if isinstance(measure, Mapping) else measure
            if isinstance(value, int | float):
                made[prefix + HELD_OUT.get(name, name)] = float(value)
    return made


def _at(step: int, schedule: Schedule) -> dict[str, Any]:
    return {"step": step * schedule.updates, "epoch": step / schedule.steps_per_epoch}


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each number over the rows that have it."""
    made = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row]
        shown = f"rewards/{name.removeprefix(PART)}/mean" if name.startswith(PART) else NAMES.get(name, name)
        made[shown] = sum(values) / len(values)
    return made
