"""Tokens a second, MFU and memory of a step: in its row, on the page, and none of it where nothing is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from verizero.pipeline.report.curves import build_charts
from verizero.pipeline.report.files import read_run
from verizero.pipeline.report.memory import DevicePeaks
from verizero.pipeline.report.row_types import StepRow, metrics_row, to_json
from verizero.pipeline.report.speed import Work
from verizero.pipeline.report.store import Store
from verizero.pipeline.report.trackers.base import Trackers
from verizero.pipeline.run.recorder import Recorder

GIB = 2.0**30


def test_rates_are_of_the_work_since_the_last_step() -> None:
    work = Work(peak_flops=1e12)
    work.add("generate", 300)
    work.add("generate", 100)
    work.add("update", 900, 2e11)
    seconds = {"generate": 2.0, "update": 0.5, "total": 3.0}
    assert work.take(seconds) == {"generate/tokens_per_s": 200, "update/tokens_per_s": 1800, "update/mfu": 0.4}
    assert work.take(seconds) == {}
    work.add("update", 100, 1e11)
    assert work.take({"generate": 1.0}) == {}, "a phase that took no time"


def test_mfu_is_absent_where_the_gpus_speed_is_not_known() -> None:
    work = Work()
    work.add("update", 100, 1e11)
    assert work.take({"update": 2.0}) == {"update/tokens_per_s": 50}


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_row_has_the_gpus_peaks_only_where_there_is_one(has_gpu: bool, tmp_path: Path) -> None:
    sizes = iter([1.0, 2.0, 7.0, 3.0])
    peaks = DevicePeaks(lambda: next(sizes) * GIB) if has_gpu else None
    recorder = Recorder(Store(tmp_path), Trackers((), tmp_path, "x", {}), None, peaks, 1e12 if has_gpu else None)
    for phase in ("generate", "update"):
        with recorder.timed(phase):
            pass
    recorder.add_seconds("update", 2.0)
    recorder.work.add("update", 10, 1e12)
    recorder.store.metrics(StepRow(stage="rl", round=1, step=1, metrics={}, **recorder.take_measures()))
    recorder.close()
    (row,) = read_run(tmp_path).steps
    assert row.memory == ({"generate": 2.0, "update": 3.0} if has_gpu else None)
    assert row.speed is not None
    assert row.speed["update/tokens_per_s"] == 5
    assert row.speed.get("update/mfu") == (0.5 if has_gpu else None)
    charts = {c.name: [s.label for s in c.series] for c in build_charts(read_run(tmp_path))}
    assert charts["speed"] == ["update"]
    assert charts.get("memory") == (["generate", "update"] if has_gpu else None)
    assert charts.get("mfu") == (["MFU"] if has_gpu else None)


def test_what_was_not_measured_is_not_written() -> None:
    row = StepRow(stage="rl", round=1, step=1, metrics={}, time={})
    assert not {"speed", "memory"} & to_json(row).keys()
    full = StepRow(stage="rl", round=1, step=1, metrics={}, time={}, speed={"a": 1.0}, memory={"update": 2.5})
    assert metrics_row(to_json(full), "line 1") == full
