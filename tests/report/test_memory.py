"""Peak memory over the processes of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from verizero.pipeline.report.memory import FILE, DevicePeaks, gpu_peaks, note_peak, noted_peak, peak_mib

ROOT = Path(__file__).resolve().parents[2]
HOG = """
import sys
from pathlib import Path
from verizero.pipeline.report.memory import note_peak
x = bytearray({mib} << 20)"""


def after_a_process_of(mib: int, folder: Path) -> float:
    """The note after a process that held so many MiB more than its imports."""
    code = f"{HOG.format(mib=mib)}; note_peak(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, cwd=ROOT)
    return noted_peak(folder)


@pytest.mark.integration
def test_what_the_parent_held_does_not_count(tmp_path: Path) -> None:
    code = "import os, sys; x = bytearray(900 << 20); os.spawnv(os.P_WAIT, sys.executable, ['py', '-c', sys.argv[1]])"
    child = f"{HOG.format(mib=1)}; note_peak(Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code, child], check=True, cwd=ROOT)
    assert noted_peak(tmp_path) < 900


@pytest.mark.integration
def test_the_highest_peak_of_all_processes_stays(tmp_path: Path) -> None:
    first = after_a_process_of(300, tmp_path)
    assert first > 300
    assert after_a_process_of(10, tmp_path) == first
    assert after_a_process_of(500, tmp_path) > first + 100


@pytest.mark.parametrize("torn", ["", "{", '{"peak_memory_mib"', "[]", '{"peak_memory_mib": null}'])
def test_a_torn_note_counts_as_none(torn: str, tmp_path: Path) -> None:
    assert noted_peak(tmp_path) == 0.0
    (tmp_path / FILE).write_text(torn)
    assert noted_peak(tmp_path) == 0.0
    note_peak(tmp_path)
    assert 0 < noted_peak(tmp_path) <= peak_mib()
    assert json.loads((tmp_path / FILE).read_text())["peak_memory_mib"] == noted_peak(tmp_path)


def test_a_phase_has_the_highest_peak_within_it() -> None:
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


def test_what_an_engine_gave_back_while_it_slept_is_no_part_of_a_peak(monkeypatch: pytest.MonkeyPatch) -> None:
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
