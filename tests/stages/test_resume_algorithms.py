"""Runs whose algorithm holds more than a policy end, killed and resumed, with the bytes of a run never killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stages.kill_driver import AROUND_UPDATES
from tests.stages.test_masks import CUT, EXPERTS

ROOT = Path(__file__).resolve().parents[2]
FEW = ["rl.rounds=1", "sft.steps=60", "rl.prompts_per_step=4", "rl.select.keep=all"]
CASES = {
    "critic of its own, warmed up": [
        "rl.algorithm={name: ppo, critic_warmup_steps: 1, kl_target: 0.1, kl_horizon: 50}"
    ],
    "shared critic": [
        "rl.algorithm={name: ppo, critic_shared: true}",
        "rl.critic={learning_rate: 1e-3, schedule: linear}",
    ],
    "greedy baseline and demonstrations": ["rl.algorithm={name: remax, ptx_coef: 0.1}"],
    "components, carried groups, budget": [
        "rl.algorithm={name: gdpo}",
        "scoring.components=[{verifier: length}]",
        "rl.select.keep=informative",
        "rl.max_tokens=3000",
    ],
    "off-policy by two": ["rl.algorithm={name: grpo, entropy_coef: 0.05}", "rollout.publish_every=3"],
    "two ahead": ["rl.algorithm={name: grpo, entropy_coef: 0.05}", "rollout.max_staleness=2"],
    "one ahead, interrupted": [
        *("rl.algorithm={name: grpo, entropy_coef: 0.05}", "rollout.max_staleness=1"),
        *("rollout.in_flight=interrupt", "rollout.interrupt_tokens=5"),
    ],
    "kept sampling sets and experts, carried groups": [
        "rl.algorithm={name: deepseek_v32}",
        "rl.select.keep=informative",
        "sft.steps=120",
        *EXPERTS,
        *CUT,
    ],
}


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed_equals_never_killed(case: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.stages.kill_driver", str(tmp_path), *FEW, *CASES[case]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["whole_status"] == 0
    assert len(found["killed"]) == len(AROUND_UPDATES)
    for kills, scenario in found["killed"].items():
        assert scenario["deaths"] == [-signal.SIGKILL], f"the kill {kills} did not happen where it was meant to"
        assert scenario["last"] == 0
        assert scenario["end"] == found["whole"], kills
