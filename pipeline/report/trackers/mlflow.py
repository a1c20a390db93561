"""MLflow, on a server or in the run's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.report.trackers.base import COLUMNS, Table, required


class Tracker:
    """One MLflow run, which a resumed run continues, at MLFLOW_TRACKING_URI or else in `run_dir/mlflow`."""

    def __init__(self, run_dir: Path, run_name: str, recipe: Mapping[str, Any]) -> None:
        # A run asks nothing of any network that its recipe does not name.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self._mlflow = required("mlflow", "mlflow>=3")
        folder = (run_dir / "mlflow").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        chosen = os.environ.get("MLFLOW_TRACKING_URI")
        where = chosen or f"sqlite:///{folder / 'runs.db'}"
        self._mlflow.set_tracking_uri(where)
        if not chosen:
            # It sets this variable, which the next run of this process would take for the user's choice.
            os.environ.pop("MLFLOW_TRACKING_URI", None)
            if self._mlflow.get_experiment_by_name("verizero") is None:  # its default for files is the working folder
                self._mlflow.create_experiment("verizero", artifact_location=(folder / "artifacts").as_uri())
        self._mlflow.set_experiment("verizero")
        begun = folder / "run.json"  # MLflow's names are not unique: its run is known by its id, and by where that is
        known = json.loads(begun.read_text()) if begun.is_file() else {}
        run_id = known.get("run_id") if known.get("where") == where else None
        run = self._mlflow.start_run(run_id=run_id) if run_id else self._mlflow.start_run(run_name=run_name)
        # At once: a run that is killed must be found again by the next start.
        begun.write_text(json.dumps({"where": where, "run_id": str(run.info.run_id)}))

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Queue one row (a write takes 50 ms); names keep to the letters that MLflow takes."""
        numbers = {name.replace("@", "_at_"): value for name, value in row.items()}
        self._mlflow.log_metrics(numbers, step=step, synchronous=False)

    def table(self, name: str, rows: Table, step: int) -> None:
        """Write samples to a file of their own, which MLflow shows as a table; written again, it has them twice."""
        columns = {column: [row[i] for row in rows] for i, column in enumerate(COLUMNS)}
        self._mlflow.log_table({"step": [step] * len(rows), **columns}, f"samples/{name.replace(' ', '-')}.json")

    def close(self) -> None:
        """Write what is queued and end the run there."""
        self._mlflow.flush_async_logging()
        self._mlflow.end_run()
