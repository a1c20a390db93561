"""trackio, whose database and dashboard are on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.report.trackers.base import COLUMNS, Table, required


class Tracker:
    """One trackio run, named as ours."""

    def __init__(self, run_dir: Path, run_name: str, recipe: Mapping[str, Any]) -> None:
        self._trackio = required("trackio", "trackio>=0.43")
        self._trackio.init(project="verizero", name=run_name, config=dict(recipe), resume="allow")

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Send one row."""
        self._trackio.log(dict(row), step=step)

    def table(self, name: str, rows: Table, step: int) -> None:
        """Send samples."""
        data = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        self._trackio.log({f"samples/{name}": self._trackio.Table(data=data)}, step=step)

    def close(self) -> None:
        """Finish the run there."""
        self._trackio.finish()
