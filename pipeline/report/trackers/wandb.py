"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.report.trackers.base import COLUMNS, Table, required


class Tracker:
    """One run there, named as ours; a resumed run continues it. Each table is one value of its step."""

    def __init__(self, run_dir: Path, run_name: str, recipe: Mapping[str, Any]) -> None:
        self._wandb = required("wandb", "wandb>=0.19")
        # The id is what "allow" finds an earlier start of this run by.
        self._run = self._wandb.init(
            project="verizero", name=run_name, id=run_name, resume="allow", dir=str(run_dir), config=dict(recipe)
        )
        # Its own step counter only moves on; ours starts again in each stage.
        self._run.define_metric("*", step_metric="step")

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Send one row."""
        self._run.log({**row, "step": step})

    def table(self, name: str, rows: Table, step: int) -> None:
        """Send samples."""
        table = self._wandb.Table(columns=list(COLUMNS), data=[list(row) for row in rows])
        self._run.log({f"samples/{name}": table, "step": step})

    def close(self) -> None:
        """Finish the run there."""
        self._run.finish()
