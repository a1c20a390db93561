"""A run of stages of every kind, killed in any of them and started again, ends with the bytes of one never killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config.run import kinds
from tests.stages.kill_driver import IN_EACH_STAGE
from tests.stages.tiny import tiny

ROOT = Path(__file__).resolve().parents[2]
STAGES = [
    "stages=[pretrain, sft, rl, preference, online_preference, sample, "
    "{name: sft_again, kind: sft, with: {steps: 5, demonstrations: sample}}, "
    "{name: rl_again, kind: rl, with: {steps_per_round: 2, algorithm: {name: rloo}}}]",
    "pretrain={steps: 5, num_lines: 50}",
    "rl.rounds=1",
    "rl.select.keep=all",
    "preference={loss: {name: dpo}, steps: 4, batch_size: 4}",
    "online_preference={loss: {name: dpo}, rounds: 1, steps_per_round: 2, prompts_per_step: 2, group_size: 6}",
    "sample={samples: 6}",
]
ELSEWHERE = {"reward_model"}
"""Kinds whose runs are broken off by tests of their own, test_<kind>.py: they need pairs that this policy lacks."""


def test_every_kind_is_tried() -> None:
    assert {s.kind for s in tiny(overrides=STAGES).stages} | ELSEWHERE == set(kinds())
    for kind in ELSEWHERE:
        assert "goes_on_as_if_never_broken(" in Path(__file__).with_name(f"test_{kind}.py").read_text()


@pytest.mark.integration
def test_killed_in_each_stage_and_resumed_equals_never_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.stages.kill_driver", str(tmp_path), *STAGES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["whole_status"] == 0
    assert len(found["killed"]) == len(IN_EACH_STAGE)
    for kills, scenario in found["killed"].items():
        assert set(scenario["deaths"]) == {-signal.SIGKILL}, f"a kill of {kills} did not happen where it was meant to"
        assert scenario["last"] == 0
        assert scenario["end"] == found["whole"], kills
