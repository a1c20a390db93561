"""The program for GPUs, in small form on the CPU: every part runs, limits and failures are seen, bounds are right."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from benchmarks import cluster, gpu
from benchmarks.gpu_parts import page
from benchmarks.gpu_parts.bound import Ceilings, cache_bytes_per_token, decode_bound_s, weight_bytes
from benchmarks.gpu_parts.correct import agreement
from benchmarks.gpu_parts.machine import Machine, check, settings_of
from benchmarks.gpu_parts.part import Part, in_child, log_name, run
from benchmarks.gpu_parts.whole import equal_steps
from tests.processes import alive, until
from tests.warm import LIBRARIES, warm
from verizero.pipeline.rollout.engine import Completion

ROOT = Path(__file__).resolve().parents[1]
NAME = re.compile(r"[A-Za-z0-9._-]+")
"""Of a file that every way of copying takes."""
H100 = Ceilings(3.0e12, {torch.bfloat16: 798e12, torch.float32: 55e12})


def model_of(name: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    """The model of that name, without memory for its weights."""
    model_type, sizes = settings_of(name)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(model_type, **sizes), dtype=dtype
        )


@pytest.mark.run
@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=[pytest.mark.nightly] * (c != "runs")) for c in gpu.COMMANDS]
)
def test_every_part_runs_dry(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_started_by_its_path_it_has_kernels_interpreted(tmp_path: Path) -> None:
    words = [sys.executable, "benchmarks/gpu.py", "speed", "--part", "kernels", "--dry", "--out", str(tmp_path)]
    alone = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(words, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    lines = [json.loads(text) for text in (tmp_path / "speed.jsonl").read_text().splitlines()]
    assert [(line["part"], line["status"]) for line in lines][-1] == ("kernels", "done"), done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("command", gpu.COMMANDS)
def test_the_parts_of_a_command_end_within_its_time(command: str) -> None:
    parts = gpu.parts_of(command)
    assert sum(part.limit_s for part in parts) <= 9.5 * 60
    names = [log_name(part.name) for part in parts]
    assert len(set(names)) == len(names)
    assert all(NAME.fullmatch(name) for name in names)


class TestBounds:
    @pytest.mark.parametrize(
        ("name", "rows", "cache", "milliseconds"),
        [
            ("Qwen/Qwen2.5-0.5B", 64, 12_288, 0.41),
            ("Qwen/Qwen2.5-0.5B", 256, 12_288, 0.66),
            ("Qwen/Qwen3-0.6B", 64, 114_688, 1.18),
            ("Qwen/Qwen3-0.6B", 256, 114_688, 3.53),
            ("Qwen/Qwen2.5-7B", 128, 57_344, 5.9),
        ],
    )
    def test_a_decode_step_reads_weights_and_cache(self, name: str, rows: int, cache: int, milliseconds: float) -> None:
        model = model_of(name)
        assert cache_bytes_per_token(model.config, 2) == cache
        assert 1e3 * decode_bound_s(model, rows, 320, H100) == pytest.approx(milliseconds, rel=0.02)

    def test_products_bound_a_step_of_many_rows_with_short_caches(self) -> None:
        model = model_of("Qwen/Qwen2.5-0.5B")
        num = sum(p.numel() for p in model.parameters())
        assert weight_bytes(model) == 2 * num
        assert decode_bound_s(model, 100_000, 1, H100) == pytest.approx(2 * num * 100_000 / 798e12)

    def test_the_engines_share_is_of_the_same_bound(self) -> None:
        model = model_of("Qwen/Qwen3-0.6B")
        shown = cluster.roofline(model, 20_000, 256, 320, H100)
        assert shown["bound_tokens_per_s"] == pytest.approx(73_000, rel=0.02)
        assert shown["share_of_roofline"] == pytest.approx(20_000 / 73_000, rel=0.02)
        assert cluster.roofline(model, 20_000, 256, 320, None) == {}

    def test_the_device_is_waited_for_before_and_after_all_that_is_timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        events: list[str] = []
        model = torch.nn.Linear(2, 2)
        model.device = torch.device("cpu")  # type: ignore[assignment]
        asked = argparse.Namespace(prompts=2, samples=1, tokens=3, rounds=1)

        def generate(turn: int) -> int:
            events.append("generate")
            return 6

        sides = [("copy", lambda turn: events.append("publish"), generate)]
        monkeypatch.setattr(cluster, "sides", lambda *_: sides)
        monkeypatch.setattr(cluster, "wait", lambda device: events.append("wait"))
        shown = cluster.measure("torch", model, asked)
        assert events == ["wait", "publish", "wait", "generate", "wait"] * 2
        assert shown["tokens_a_round"] == 6


class TestParts:
    def test_without_a_gpu_nothing_is_measured(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
        assert gpu.run_all("speed", tmp_path, None, False, 60) == 1
        (line,) = [json.loads(text) for text in (tmp_path / "speed.jsonl").read_text().splitlines()]
        assert line["why"] == "SystemExit: torch sees no GPU here; --dry runs small forms of all parts on the CPU"
        assert line["why"] in capsys.readouterr().out

    def test_a_part_that_takes_too_long_is_ended_and_keeps_its_rows(self, tmp_path: Path) -> None:
        def work() -> Iterator[dict[str, Any]]:
            yield {"what": "first", "process": os.getpid()}
            time.sleep(600)

        rows, end = in_child(work, 0.5, tmp_path / "log")
        assert [row["what"] for row in rows] == ["first"]
        assert end == "out of time"
        with pytest.raises(ProcessLookupError):
            os.kill(rows[0]["process"], 0)

    def test_what_a_part_has_started_in_turn_ends_with_it(self, tmp_path: Path) -> None:
        def inner() -> Iterator[dict[str, Any]]:
            yield {"process": os.getpid()}
            time.sleep(60)

        def work() -> Iterator[dict[str, Any]]:
            (tmp_path / "started").write_text("")
            yield {"rows": in_child(named, 60, tmp_path / "inner")[0]}

        def named() -> Iterator[dict[str, Any]]:
            (tmp_path / "process").write_text(str(os.getpid()))
            time.sleep(60)
            yield {}

        _, end = in_child(work, 2, tmp_path / "log")
        assert end == "out of time"
        process = int((tmp_path / "process").read_text())
        until(lambda: not alive([process]), "the part's own child ends")

    def test_an_error_and_a_crash_are_told(self, tmp_path: Path) -> None:
        def work(crash: bool) -> Iterator[dict[str, Any]]:
            yield {"what": "first"}
            if crash:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("no kernel")

        assert in_child(lambda: work(False), 20, tmp_path / "a") == ([{"what": "first"}], "ValueError: no kernel")
        assert in_child(lambda: work(True), 20, tmp_path / "b") == ([{"what": "first"}], "its process ended with -9")
        assert "no kernel" in (tmp_path / "a").read_text()

    @pytest.mark.parametrize(
        ("measured", "needs", "left_s", "status"),
        [
            (0.5, (), 9, "done"),
            (2.5, (), 9, "failed"),
            (0.5, ("a_package_that_is_not_there",), 9, "skipped"),
            (0.5, (), 0, "skipped"),
        ],
    )
    def test_a_part_becomes_one_line(
        self, measured: float, needs: tuple[str, ...], left_s: float, status: str, tmp_path: Path
    ) -> None:
        def work(machine: Machine) -> Iterator[dict[str, Any]]:
            yield check("gap", measured, at_most=1)

        line = run(Part("gap", "A gap.", "at most 1", 9, work, needs), Machine(True, tmp_path), "speed", left_s)
        assert line["status"] == status
        assert ("why" in line) == (status != "done")
        assert json.loads(json.dumps(line)) == line

    def test_not_a_number_is_within_no_limit(self) -> None:
        assert check("gap", float("nan"), at_most=1)["holds"] is False
        assert check("share", 0.9, at_least=0.99)["holds"] is False

    def test_responses_agree_up_to_the_first_difference(self) -> None:
        ours = [Completion((5, 6, 7), (-1.0, -2.0, -3.0), "length")]
        theirs = [Completion((5, 9, 7), (-1.25, -2.5, -9.0), "length")]
        assert agreement(ours, theirs) == (1 / 3, 0.25, 0.5)
        assert agreement(ours, ours) == (1, 0, 0)

    def test_equal_lines_are_counted_to_the_first_difference(self) -> None:
        assert equal_steps([1, 2, 3], [1, 2, 3]) == 3
        assert equal_steps([1, 2, 3], [1, 4, 3]) == 1
        assert equal_steps([1, 2], [1, 2, 3]) == 2


class TestPage:
    def test_the_page_has_every_part_and_says_never_run_until_there_are_results(self) -> None:
        text = (ROOT / "benchmarks" / "gpu_results.md").read_text()
        results = text.split("<!-- results: begin -->")[1].split("<!-- results: end -->")[0].strip()
        assert gpu.page(text, results) == text, "run benchmarks/gpu.py page, or write the tables of the parts again"
        assert page.section([]) == page.NEVER

    def test_results_are_shown_with_what_was_expected(self) -> None:
        part = {
            "command": "speed",
            "part": "decode",
            "dry": False,
            "expected": "4 ms",
            "status": "done",
            "seconds": 9.5,
        }
        rows = [{"rows": 64, "step, ms": 4.4567, "tokens/s": 14361.2}, {"rows": 256, "step, ms": None, "tokens/s": 1.0}]
        machine = {**part, "part": "machine", "expected": "", "rows": [{"GPU": "H100", "torch": "2.11.0"}]}
        skipped = {**part, "part": "TRL", "status": "skipped", "why": "not installed: trl", "rows": []}
        text = page.section([machine, {**part, "rows": rows}, skipped])
        assert text.startswith("Measured on: GPU H100, torch 2.11.0.\n\n| part | outcome |")
        assert "| decode | done | 9.5 | 4 ms |" in text
        assert "| TRL | skipped: not installed: trl | 9.5 | 4 ms |" in text
        assert "| 64 | 4.46 | 14,361 |" in text
        assert "| 256 |  | 1 |" in text

    def test_results_of_no_run_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit, match="has no results"):
            page.read(tmp_path)
