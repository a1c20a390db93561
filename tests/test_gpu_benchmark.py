"""The program for GPUs, in small form on the CPU: every part runs, limits and failures are seen, bounds are right."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_parts import page
from benchmarks.gpu_parts.correct import agreement
from benchmarks.gpu_parts.machine import Machine, check, seconds
from benchmarks.gpu_parts.part import Part, in_child, log_name, run
from benchmarks.gpu_parts.whole import equal_steps
from tests.processes import alive, until
from tests.source import ROOT
from tests.warm import LIBRARIES, warm
from verizero.pipeline.rollout.engine import Completion

NAME = re.compile(r"[A-Za-z0-9._-]+")
"""Of a file that every way of copying takes."""


@pytest.mark.run
@pytest.mark.nightly
@pytest.mark.parametrize("command", gpu.COMMANDS)
def test_every_part_runs_dry(command, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # the program sets it too, but its libraries are loaded before
    words = [sys.executable, "-m", "benchmarks.gpu", command, "--dry", "--out", str(tmp_path)]
    done = warm(LIBRARIES).call(subprocess.run, words, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [json.loads(text) for text in (tmp_path / f"{command}.jsonl").read_text().splitlines()]
    assert [(line["part"], line["status"], line.get("why")) for line in lines] == [
        (part.name, "done", None) for part in gpu.parts_of(command)
    ], done.stderr
    assert all(line["rows"] and line["dry"] for line in lines)
    assert all(NAME.fullmatch(file.name) for file in (tmp_path / "logs").iterdir())
    assert done.returncode == 0
    assert "A dry run on the CPU" in page.section(lines)


@pytest.mark.run
def test_started_by_its_path_it_has_kernels_interpreted(tmp_path):
    words = [sys.executable, "benchmarks/gpu.py", "speed", "--part", "kernels", "--dry", "--out", str(tmp_path)]
    alone = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(words, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    lines = [json.loads(text) for text in (tmp_path / "speed.jsonl").read_text().splitlines()]
    assert [(line["part"], line["status"]) for line in lines][-1] == ("kernels", "done"), done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("command", gpu.COMMANDS)
def test_the_parts_of_a_command_end_within_its_time(command):
    parts = gpu.parts_of(command)
    assert sum(part.limit_s for part in parts) <= 9.5 * 60
    names = [log_name(part.name) for part in parts]
    assert len(set(names)) == len(names)
    assert all(NAME.fullmatch(name) for name in names)


def test_the_device_is_waited_for_before_and_after_all_that_is_timed(monkeypatch):
    events = []
    monkeypatch.setattr("benchmarks.gpu_parts.machine.wait", lambda device: events.append("wait"))
    seconds(lambda: events.append("work"), torch.device("cpu"), times=2)
    assert events == ["work", "wait", "work", "work", "wait"]


class TestParts:
    def test_without_a_gpu_nothing_is_measured(self, tmp_path, capsys):
        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
        assert gpu.run_all("speed", tmp_path, None, False, 60) == 1
        (line,) = [json.loads(text) for text in (tmp_path / "speed.jsonl").read_text().splitlines()]
        assert line["why"] == "SystemExit: torch sees no GPU here; --dry runs small forms of all parts on the CPU"
        assert line["why"] in capsys.readouterr().out

    def test_a_part_that_takes_too_long_is_ended_with_what_it_started_and_keeps_its_rows(self, tmp_path, monkeypatch):
        process = tmp_path / "process"

        def inner():
            (tmp_path / "new").write_text(str(os.getpid()))
            (tmp_path / "new").rename(process)
            time.sleep(600)
            yield {}

        def work():
            yield {"what": "first"}
            in_child(inner, 600, tmp_path / "inner")

        clock = SimpleNamespace(monotonic=lambda: 300.0 * process.exists())  # all the time has passed once inner works
        monkeypatch.setattr("benchmarks.gpu_parts.part.time", clock)
        assert in_child(work, 120, tmp_path / "log") == ([{"what": "first"}], "out of time")
        until(lambda: not alive([int(process.read_text())]), "the part's own child ends")

    def test_an_error_and_a_crash_are_told(self, tmp_path):
        def work(crash):
            yield {"what": "first"}
            if crash:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("no kernel")

        assert in_child(lambda: work(False), 60, tmp_path / "a") == ([{"what": "first"}], "ValueError: no kernel")
        assert in_child(lambda: work(True), 60, tmp_path / "b") == ([{"what": "first"}], "its process ended with -9")
        assert "no kernel" in (tmp_path / "a").read_text()

    @pytest.mark.parametrize(
        ("limits", "needs", "left_s", "status"),
        [
            ({"at_most": 1}, (), 60, "done"),
            ({"at_least": 0.99}, (), 60, "failed"),
            ({"at_most": math.nan}, (), 60, "failed"),
            ({}, ("a_package_that_is_not_there",), 60, "skipped"),
            ({}, (), 0, "skipped"),
        ],
    )
    def test_a_part_becomes_one_line(self, limits, needs, left_s, status, tmp_path):
        def work(machine):
            yield check("gap", 0.9, **limits)

        line = run(Part("gap", "A gap.", "at most 1", 60, work, needs), Machine(True, tmp_path), "speed", left_s)
        assert line["status"] == status
        assert ("why" in line) == (status != "done")

    def test_responses_agree_up_to_the_first_difference(self):
        ours = [Completion((5, 6, 7), (-1.0, -2.0, -3.0), "length")]
        theirs = [Completion((5, 9, 7), (-1.25, -2.5, -9.0), "length")]
        assert agreement(ours, theirs) == (1 / 3, 0.25, 0.5)
        assert agreement(ours, ours) == (1, 0, 0)

    def test_equal_lines_are_counted_to_the_first_difference(self):
        assert equal_steps([1, 2, 3], [1, 2, 3]) == 3
        assert equal_steps([1, 2, 3], [1, 4, 3]) == 1
        assert equal_steps([1, 2], [1, 2, 3]) == 2


def test_the_page_has_every_part_as_it_is():
    text = (ROOT / "benchmarks" / "gpu_results.md").read_text()
    results = text.split("<!-- results: begin -->")[1].split("<!-- results: end -->")[0].strip()
    assert gpu.page(text, results) == text, "run benchmarks/gpu.py page, or write the tables of the parts again"


def test_results_are_shown_with_what_was_expected(tmp_path):
    part = {"command": "speed", "part": "decode", "dry": False, "expected": "4 ms", "status": "done", "seconds": 9.5}
    rows = [{"rows": 64, "step, ms": 4.4567, "tokens/s": 14361.2}, {"rows": 256, "step, ms": None, "tokens/s": 1.0}]
    machine = {**part, "part": "machine", "expected": "", "rows": [{"GPU": "H100", "torch": "2.11.0"}]}
    skipped = {**part, "part": "TRL", "status": "skipped", "why": "not installed: trl", "rows": []}
    text = page.section([machine, {**part, "rows": rows}, skipped])
    assert text.startswith("Measured on: GPU H100, torch 2.11.0.\n\n| part | outcome |")
    for line in ("decode | done | 9.5 | 4 ms", "TRL | skipped: not installed: trl | 9.5 | 4 ms", "64 | 4.46 | 14,361"):
        assert f"| {line} |" in text
    assert "| 256 |  | 1 |" in text
    with pytest.raises(SystemExit, match="has no results"):
        page.read(tmp_path)
