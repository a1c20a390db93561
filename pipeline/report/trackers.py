"""The same metrics sent to trackers during a run: TensorBoard event files always, other services by extras.

Each tracker is imported when it is opened, never before. A tracker must not slow a step or end a run: TensorBoard's
writer only queues (a thread of its own writes), and a service that fails later is reported once and left.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from verizero.pipeline.errors import ConfigError

INSTALL = {
    "tensorboard": "pip install 'tensorboard>=2.18'",
    "wandb": "pip install 'wandb>=0.19'",
    "mlflow": "pip install 'mlflow>=3'",
    "trackio": "pip install 'trackio>=0.2'",
}
QUEUE_EVENTS = 1000
"""Steps that may wait to be written before one has to wait for the disk."""
FLUSH_S = 10
"""Seconds after which queued steps reach the file, where a viewer sees them."""


class Tracker(Protocol):
    """Takes one row of metrics at a time."""

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Record `row`, finite numbers by name, at `step`."""
        ...

    def close(self) -> None:
        """Write all that was logged, and close."""
        ...


class Trackers:
    """The named trackers as one, opened for the run in `run_dir`.

    A tracker that fails during the run is dropped, and `failures` says which and why: metrics.jsonl has every step.

    Raises: ConfigError for an unknown name, or one that is not installed, with the command that installs it.
    """

    def __init__(
        self, names: Sequence[str], run_dir: Path, run_name: str, recipe: Mapping[str, Any] | None = None
    ) -> None:
        self.failures: list[str] = []
        self._open: dict[str, Tracker] = {}
        try:
            for name in dict.fromkeys(names):
                if name not in OPENERS:
                    known = ", ".join(OPENERS)
                    raise ConfigError(f"report.trackers: no tracker is called {name!r}; known: {known}")
                self._open[name] = OPENERS[name](Path(run_dir), run_name, dict(recipe or {}))
        except Exception:
            self.close()
            raise

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Record `row` at `step` in each; what is not a finite number is left out."""
        # Not every service takes NaN.
        finite = {k: float(v) for k, v in row.items() if isinstance(v, int | float) and math.isfinite(v)}
        for name, tracker in list(self._open.items()):
            try:
                tracker.log(finite, step)
            except Exception as exc:
                self._drop(name, exc)

    def close(self) -> None:
        """Write what is queued and close each. Closing again does nothing."""
        for name, tracker in list(self._open.items()):
            try:
                tracker.close()
            except Exception as exc:
                self._drop(name, exc)
        self._open.clear()

    def _drop(self, name: str, exc: Exception) -> None:
        del self._open[name]
        self.failures.append(f"tracker {name} stopped at {type(exc).__name__}: {exc}; metrics.jsonl holds every step")


class TensorBoard:
    """Event files in `run_dir/tensorboard`, one more for each start of the run.

    A resumed run writes again the steps that a killed one had logged after its last checkpoint; they are the same
    numbers, so the curves lie on each other.
    """

    def __init__(self, run_dir: Path, run_name: str, recipe: Mapping[str, Any]) -> None:
        # TensorBoard's own writer: it loads in 0.3 s and needs neither torch nor tensorflow.
        writer = _load("tensorboard", "tensorboard.summary.writer.event_file_writer")
        self._event = import_module("tensorboard.compat.proto.event_pb2")
        self._summary = import_module("tensorboard.compat.proto.summary_pb2")
        folder = run_dir / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = writer.EventFileWriter(str(folder), max_queue_size=QUEUE_EVENTS, flush_secs=FLUSH_S)

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Queue one event with all numbers."""
        values = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        """Write what is queued."""
        self._writer.close()


class Wandb:
    """One Weights & Biases run, named as ours; a resumed run continues it."""

    def __init__(self, run_dir: Path, run_name: str, recipe: Mapping[str, Any]) -> None:
        wandb = _load("wandb", "wandb")
        # The id is what "allow" finds an earlier start of this run by.
        self._run = wandb.init(
            project="verizero", name=run_name, id=run_name, resume="allow", dir=str(run_dir), config=dict(recipe)
        )
        # Its own step counter only moves on; ours starts again in each stage.
        self._run.define_metric("*", step_metric="step")

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Send one row."""
        self._run.log({**row, "step": step})

    def close(self) -> None:
        """Finish the run there."""
        self._run.finish()


class Mlflow:
    """One MLflow run, which a resumed run continues, at MLFLOW_TRACKING_URI or else in `run_dir/mlflow`."""

    def __init__(self, run_dir: Path, run_name: str, recipe: Mapping[str, Any]) -> None:
        # A run asks nothing of any network that its recipe does not name.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self._mlflow = _load("mlflow", "mlflow")
        folder = run_dir / "mlflow"
        folder.mkdir(parents=True, exist_ok=True)
        where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'runs.db').resolve()}"
        self._mlflow.set_tracking_uri(where)
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

    def close(self) -> None:
        """Write what is queued and end the run there."""
        self._mlflow.flush_async_logging()
        self._mlflow.end_run()


class Trackio:
    """One trackio run, named as ours."""

    def __init__(self, run_dir: Path, run_name: str, recipe: Mapping[str, Any]) -> None:
        self._trackio = _load("trackio", "trackio")
        self._trackio.init(project="verizero", name=run_name, config=dict(recipe), resume="allow")

    def log(self, row: Mapping[str, float], step: int) -> None:
        """Send one row."""
        self._trackio.log(dict(row), step=step)

    def close(self) -> None:
        """Finish the run there."""
        self._trackio.finish()


OPENERS: dict[str, Callable[[Path, str, Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
    "trackio": Trackio,
}


def _load(name: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as exc:
        remedy = f"run `{INSTALL[name]}`, or take it off the list"
        raise ConfigError(f"report.trackers names {name!r}, which is not installed ({exc}); {remedy}") from exc
