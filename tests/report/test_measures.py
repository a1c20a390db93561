"""Tokens a second, MFU and peaks of memory: in a step's row, on the page, and of all processes of a run."""

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.processes import until
from tests.source import ROOT
from verizero.pipeline.report import measures
from verizero.pipeline.report.curves import build_charts
from verizero.pipeline.report.measures import (
    FILE,
    DevicePeaks,
    Used,
    Work,
    gpu_peaks,
    note_peak,
    noted_peak,
    others_take,
    peak_mib,
    used,
    watch_cores,
)
from verizero.pipeline.report.row_types import StepRow, metrics_row, to_json
from verizero.pipeline.report.run_files import read_run
from verizero.pipeline.report.store import Store
from verizero.pipeline.report.trackers.base import Trackers
from verizero.pipeline.run.recorder import Recorder

HOG = """
import sys
from pathlib import Path
from verizero.pipeline.report.measures import note_peak
x = bytearray({mib} << 20)"""


def after_a_process_of(mib, folder):
    """The note after a process that held so many MiB more than its imports."""
    code = f"{HOG.format(mib=mib)}; note_peak(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, cwd=ROOT)
    return noted_peak(folder)


@pytest.mark.run
def test_what_the_parent_held_does_not_count(tmp_path):
    code = "import os, sys; x = bytearray(900 << 20); os.spawnv(os.P_WAIT, sys.executable, ['py', '-c', sys.argv[1]])"
    child = f"{HOG.format(mib=1)}; note_peak(Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code, child], check=True, cwd=ROOT)
    assert noted_peak(tmp_path) < 900


@pytest.mark.run
def test_the_highest_peak_of_all_processes_stays(tmp_path):
    first = after_a_process_of(300, tmp_path)
    assert first > 300
    assert after_a_process_of(10, tmp_path) == first
    assert after_a_process_of(500, tmp_path) > first + 100


@pytest.mark.parametrize("torn", ["", "{", '{"peak_memory_mib"', "[]", '{"peak_memory_mib": null}'])
def test_a_torn_note_counts_as_none(torn, tmp_path):
    assert noted_peak(tmp_path) == 0.0
    (tmp_path / FILE).write_text(torn)
    assert noted_peak(tmp_path) == 0.0
    note_peak(tmp_path)
    assert 0 < noted_peak(tmp_path) <= peak_mib()
    assert json.loads((tmp_path / FILE).read_text())["peak_memory_mib"] == noted_peak(tmp_path)


def test_a_phase_has_the_highest_peak_within_it():
    """Also of a phase that is within another; what was held before a phase began counts where it was held."""
    gib = iter([5.0, 2.0, 3.0, 4.0, 1.0, 9.0, 2.0])
    peaks = DevicePeaks(lambda: next(gib) * 2**30)
    peaks.enter("total")  # 5 before it
    peaks.enter("generate")  # 2 in total
    peaks.leave("generate")  # 3
    peaks.enter("update")  # 4 between the two
    peaks.leave("update")  # 1
    peaks.leave("total")  # 9
    assert peaks.take() == {"total": 9.0, "generate": 3.0, "update": 1.0}
    assert peaks.take() == {}


def test_what_an_engine_gave_back_while_it_slept_is_no_part_of_a_peak(monkeypatch):
    """torch counts 40 GiB of the engine all the time. It sleeps in the update, and wakes for the next responses."""
    asleep, allocated = [0], [0.0]
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: int(allocated[0] * 2**30))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    peaks = gpu_peaks(lambda: asleep[0] * 2**30)
    for phase, starts_asleep, ends_asleep, most in (
        ("generate", 0, 0, 50),
        ("update", 40, 40, 65),
        ("publish", 40, 0, 56),
        ("generate", 0, 0, 52),
    ):
        asleep[0], allocated[0] = starts_asleep, 49
        peaks.enter(phase)
        asleep[0], allocated[0] = ends_asleep, most
        peaks.leave(phase)
    assert peaks.take() == {"generate": 52, "update": 25, "publish": 56}


GIB = 2.0**30


def test_rates_are_of_the_work_since_the_last_step():
    work = Work(peak_flops=1e12)
    work.add("generate", 300)
    work.add("generate", 100)
    work.add("update", 900, 2e11)
    seconds = {"generate": 2.0, "update": 0.5, "total": 3.0}
    assert work.take(seconds) == {"generate/tokens_per_s": 200, "update/tokens_per_s": 1800, "update/mfu": 0.4}
    assert work.take(seconds) == {}
    work.add("update", 100, 1e11)
    assert work.take({"generate": 1.0}) == {}, "a phase that took no time"
    work = Work()  # where the GPU's speed is not known
    work.add("update", 100, 1e11)
    assert work.take({"update": 2.0}) == {"update/tokens_per_s": 50}


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_row_has_the_gpus_peaks_only_where_there_is_one(has_gpu, tmp_path):
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
    assert row.speed["update/tokens_per_s"] == 5
    assert row.speed.get("update/mfu") == (0.5 if has_gpu else None)
    charts = {c.name: [s.label for s in c.series] for c in build_charts(read_run(tmp_path))}
    assert charts["speed"] == ["update"]
    assert charts.get("memory") == (["generate", "update"] if has_gpu else None)
    assert charts.get("mfu") == (["MFU"] if has_gpu else None)


def test_what_was_not_measured_is_not_written():
    row = StepRow(stage="rl", round=1, step=1, metrics={}, time={})
    assert not {"speed", "memory"} & to_json(row).keys()
    full = StepRow(stage="rl", round=1, step=1, metrics={}, time={}, speed={"a": 1.0}, memory={"update": 2.5})
    assert metrics_row(to_json(full), "line 1") == full


BURN = "import time\nwhile time.process_time() < 0.3: pass"
LEAST_S = 0.2
"""The kernel counts in ticks, each sum of its own, so some of the 0.3 seconds may be missing."""


@pytest.mark.parametrize(
    ("own", "together", "idle", "is_reported"),
    [(60, 120, 0, True), (85, 118, 2, True), (118, 120, 0, False), (0, 60, 60, False), (50, 100, 20, False)],
)
def test_others_are_reported_where_no_core_is_left_and_they_have_a_part(own, together, idle, is_reported, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    text = others_take(Used(5, 7, 9), Used(5 + own, 7 + together, 9 + idle))
    assert bool(text) is is_reported
    if (own, together) == (60, 120):
        assert text == "other programs use 1.0 of the 2 cores, so this run is slower than it would be alone"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_a_child_s_time_is_the_run_s_own_while_it_lives_and_after_it():
    before = used()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    after = used()
    assert after.own - before.own >= LEAST_S
    assert after.all - before.all >= LEAST_S
    with subprocess.Popen([sys.executable, "-c", BURN + "\nprint(flush=True)\ninput()"], stdin=-1, stdout=-1) as child:
        child.stdout.readline()
        assert used().own - after.own >= LEAST_S
        child.communicate(b"\n")


def test_the_watch_reports_it_once_and_ends_with_the_block(monkeypatch):
    monkeypatch.setattr(measures, "used", lambda: Used(0, 0, 0))
    monkeypatch.setattr(measures, "others_take", lambda before, now: "other programs")
    lines = list[str]()
    with watch_cores(lines.append, every_s=0.001):
        until(lambda: len(lines) == 1, "the line")
    assert lines == ["other programs"]
