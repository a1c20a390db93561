"""Read a run's folder: the one reader of metrics.jsonl, and of rollouts.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verizero.pipeline.config.stages import RoundsConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.host.disk import Row, numbered_jsonl, read_jsonl
from verizero.pipeline.near import near_path
from verizero.pipeline.report.row_types import (
    Alarm,
    CollapseAlarm,
    EvaluationRow,
    MetricsRow,
    RolloutRow,
    StepRow,
    metrics_row,
    rollout_row,
    section_of,
)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run. Only metrics.jsonl must exist; a missing file is empty."""

    folder: Path
    recipe: str
    """The text of recipe.yaml."""
    info: Row
    """run.json."""
    steps: list[StepRow]
    """Steps in order, without those that a roll-back undid."""
    evaluations: list[EvaluationRow]
    """Evaluations in order, without those that a roll-back undid."""
    alarms: list[Alarm]
    base_evaluation: int | None
    """Index of the last evaluation before learning from rewards or preferences; None without evaluations."""
    step_lines: list[int]
    """The line of each of `steps` in metrics.jsonl, from 1."""
    evaluation_lines: list[int]

    @property
    def name(self) -> str:
        """The run's name, else its folder's."""
        return str(self.info.get("name") or self.folder.name)

    @property
    def rl_steps(self) -> list[StepRow]:
        """Rows of the steps of all stages that train in rounds on their own responses."""
        return [row for row in self.steps if issubclass(section_of(row), RoundsConfig)]


def read_run(folder: Path) -> RunFiles:
    """Return the files of the run in `folder`. Raises: RunError without metrics.jsonl, or if run.json is not JSON."""
    steps: list[tuple[int, StepRow]] = []
    evaluations: list[tuple[int, EvaluationRow]] = []
    alarms: list[Alarm] = []
    base: int | None = None
    for line, row in enumerate(read_metrics(folder), 1):
        if isinstance(row, EvaluationRow):
            evaluations.append((line, row))
        elif isinstance(row, StepRow):
            # The last evaluation before the first such step is what a gain is measured from.
            if base is None and evaluations and section_of(row).learns_from_responses:
                base = len(evaluations) - 1
            steps.append((line, row))
        elif isinstance(row, Alarm):
            alarms.append(row)
            # Only rows before the alarm: those that follow it repeat the same step numbers and count.
            if isinstance(row, CollapseAlarm) and row.to_step is not None:
                steps = [(n, r) for n, r in steps if not undone(r, row.stage, row.to_step)]
                evaluations = [(n, r) for n, r in evaluations if not undone(r, row.stage, row.to_step)]
    if base is None and evaluations:
        base = 0
    recipe = folder / "recipe.yaml"
    return RunFiles(
        folder,
        recipe.read_text(encoding="utf-8", errors="replace") if recipe.is_file() else "",
        _object(folder / "run.json"),
        [row for _, row in steps],
        [row for _, row in evaluations],
        alarms,
        base,
        [line for line, _ in steps],
        [line for line, _ in evaluations],
    )


def undone(row: StepRow | EvaluationRow, stage: str, to_step: int) -> bool:
    """True if a roll-back of `stage` to `to_step` undid the row, which was written before it."""
    return row.stage == stage and row.step > to_step


def require_run(folder: Path) -> Path:
    """Return the folder of a run. Raises: RunError if it holds no metrics.jsonl, saying which folders are near."""
    if not (folder / "metrics.jsonl").is_file():
        hint = "name the folder of a run, e.g. runs/demo"
        raise RunError(f"{folder} holds no metrics.jsonl; {hint if folder.is_dir() else near_path(folder, hint)}")
    return folder


def read_metrics(folder: Path) -> list[MetricsRow]:
    """Return the rows of a run's metrics.jsonl. Raises: RunError without it; DataError for a line that is no row."""
    path = require_run(folder) / "metrics.jsonl"
    return [metrics_row(line, f"row {number} of {path}") for number, line in enumerate(read_jsonl(path), 1)]


def read_rollouts(folder: Path) -> Iterator[RolloutRow]:
    """Yield the rows of a run's rollouts.jsonl without torn lines. Raises: DataError for an object that is no row."""
    path = folder / "rollouts.jsonl"
    return (rollout_row(line, f"row {number} of {path}") for number, line in numbered_jsonl(path))


def _object(path: Path) -> Row:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as exc:
        raise RunError(f"{path} is not JSON ({exc}); restore it, or delete it to report without it") from exc
    return value if isinstance(value, dict) else {}
