"""Runs whose algorithm holds more than a policy end, killed and resumed, with the bytes of a run never killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stages.broken import all_survived, killed
from tests.stages.kill_driver import AROUND_UPDATES
from tests.stages.recorded import CUT, EXPERTS
from tests.stages.start import ONLY_RL, start

FEW = ["rl.rounds=1", "rl.prompts_per_step=4", "rl.select.keep=all"]
CASES = {
    "critic of its own, warmed up": [
        "rl.algorithm={name: ppo, critic_warmup_steps: 1, kl_target: 0.1, kl_horizon: 50}"
    ],
    "shared critic": [
        "rl.algorithm={name: ppo, critic_shared: true}",
        "rl.critic={learning_rate: 1e-3, schedule: linear}",
    ],
    "greedy baseline and demonstrations, graded while others are sampled": [
        "rl.algorithm={name: remax, ptx_coef: 0.1}",
        "scoring.overlap=true",
    ],
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
    "a policy that teaches itself with feedback, two ahead": [
        "rl.algorithm={name: grpo, entropy_coef: 0.05}",
        "rl.reference={schedule: ema, alpha: 0.1}",
        "rl.distill={coef: 0.5, over: sampled, stale_weights: token, teacher: {feedback: {template: "
        "'{right}{message}{question}', right: '{right}, ', message: '{message}, ', max_message_tokens: 9}}}",
        "rollout.max_staleness=2",
    ],
    "steps of responses, carried groups": [
        "rl.algorithm={name: grpo_process}",
        "data.train.0.verifier={name: equations}",
        "rl.select.keep=informative",
    ],
    "kept sampling sets and experts, carried groups": [
        "rl.algorithm={name: deepseek_v32}",
        "rl.select.keep=informative",
        *CUT,
    ],
}


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed_equals_never_killed(case: str, tmp_path: Path) -> None:
    policy = EXPERTS if "experts" in case else ()
    begun = start("sft.steps=60", *policy)
    all_survived(killed(tmp_path, begun, *ONLY_RL, *FEW, *CASES[case]), len(AROUND_UPDATES))
