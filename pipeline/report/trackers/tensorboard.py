"""TensorBoard's event files, in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from verizero.pipeline.report.trackers.base import required

QUEUE_EVENTS = 1000
"""Steps that may wait to be written before one has to wait for the disk."""
FLUSH_S = 10
"""Seconds after which queued steps reach the file, where a viewer sees them."""


class Tracker:
    """Event files in `run_dir/tensorboard`, one more for each start of the run.

    A resumed run writes again the steps that a killed one had logged after its last checkpoint; they are the same
    numbers, so the curves lie on each other.
    """

    def __init__(self, run_dir: Path, run_name: str, recipe: Mapping[str, Any]) -> None:
        # TensorBoard's own writer: it loads in 0.3 s and needs neither torch nor tensorflow.
        writer = required("tensorboard", "tensorboard>=2.18", "tensorboard.summary.writer.event_file_writer")
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
