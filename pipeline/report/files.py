"""A run's folder, read back: what every part of a report is made from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import RunError
from pipeline.files import Row, read_jsonl

ROUNDS = frozenset({"rl", "online_preference"})
"""Kinds of stages whose every step samples, verifies and trains."""
LEARNING = ROUNDS | {"preference"}
"""Kinds of stages that learn from rewards or preferences, not from texts."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What a run wrote of itself. A file that is missing reads as empty; only metrics.jsonl must be there."""

    folder: Path
    recipe: str
    """recipe.yaml as it stands."""
    info: Row
    """run.json."""
    steps: list[Row]
    """Rows of kind "step", in order, but for those that a roll-back undid."""
    evaluations: list[Row]
    """Rows of kind "evaluation", likewise."""
    alarms: list[Row]
    """Rows of kind "alarm", in order."""
    base_evaluation: int | None
    """Index of the evaluation that learning from rewards or preferences started from; None without evaluations."""

    @property
    def name(self) -> str:
        """The run's name, else its folder's."""
        return str(self.info.get("name") or self.folder.name)

    @property
    def rl_steps(self) -> list[Row]:
        """Rows of RL steps, and of steps on preferences that are made as they are trained on; of all such stages."""
        return [row for row in self.steps if kind_of(row) in ROUNDS]


def read_run(folder: Path) -> RunFiles:
    """The files of the run in `folder`.

    Raises: RunError if it holds no metrics.jsonl, or a run.json that is not JSON.
    """
    if not (folder / "metrics.jsonl").is_file():
        raise RunError(f"{folder} holds no metrics.jsonl; name the folder of a run, e.g. runs/demo")
    steps: list[Row] = []
    evaluations: list[Row] = []
    alarms: list[Row] = []
    base: int | None = None
    for row in read_jsonl(folder / "metrics.jsonl"):
        if row.get("kind") == "evaluation":
            evaluations.append(row)
        elif row.get("kind") == "step":
            if base is None and kind_of(row) in LEARNING and evaluations:
                base = len(evaluations) - 1
            steps.append(row)
        elif row.get("kind") == "alarm":
            alarms.append(row)
            if "to_step" in row:
                steps, evaluations = not_undone(steps, row), not_undone(evaluations, row)
    if base is None and evaluations:
        base = 0
    return RunFiles(
        folder, _text(folder / "recipe.yaml"), _object(folder / "run.json"), steps, evaluations, alarms, base
    )


def not_undone(rows: list[Row], alarm: Row) -> list[Row]:
    """The rows that stand after a roll-back: those of its stage past the step that it went back to do not."""
    return [r for r in rows if r.get("stage") != alarm["stage"] or int(r.get("step", 0)) <= int(alarm["to_step"])]


def kind_of(row: Row) -> str:
    """The kind of the stage of a row of metrics.jsonl; where none is written, its name."""
    return str(row.get("stage_kind", row.get("stage")))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _object(path: Path) -> Row:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as exc:
        raise RunError(f"{path} is not JSON ({exc}); restore it, or delete it to report without it") from exc
    return value if isinstance(value, dict) else {}
