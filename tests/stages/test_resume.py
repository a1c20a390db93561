"""Runs killed at any moment and started again end with the bytes of a run never killed, whatever they hold."""

import pytest

from tests.stages.broken import killed
from tests.stages.kill_driver import IN_EACH_STAGE
from tests.stages.marks import MARKED
from tests.stages.recorded import CUT, EXPERTS
from tests.stages.start import ONLY_RL, start, started
from tests.stages.tiny import tiny
from verizero.pipeline.config.run import RunConfig


@pytest.mark.run
def test_killed_and_resumed_equals_never_killed(tmp_path):
    killed(tmp_path, "anywhere", *started())


FEW = ["rl.rounds=1", "rl.prompts_per_step=4", "rl.select.keep=all"]
ENTROPY = "rl.algorithm={name: grpo, entropy_coef: 0.05}"
LORA = "train.lora={rank: 4, alpha: 8}"
CASES = {
    "critic of its own, warmed up": ["rl.algorithm={name: ppo, critic_warmup_steps: 1}"],
    "half the bits": [ENTROPY, "model.dtype=bfloat16"],
    "shared critic": [
        "rl.algorithm={name: ppo, critic_shared: true}",
        "rl.optimizer={learning_rate: 1e-3, schedule: linear}",
    ],
    "adapters on four bits, greedy baseline and demonstrations, graded while others are sampled": [
        "rl.algorithm={name: remax, ptx_coef: 0.1}",
        "scoring.overlap=true",
        "model.quantize=nf4",
        LORA,
    ],
    "components, carried groups, budget": [
        "rl.algorithm={name: gdpo}",
        "scoring.components=[{verifier: length}]",
        "rl.select.keep=informative",
        "rl.max_tokens=3000",
    ],
    "adapters of experts": [ENTROPY, LORA],
    "a policy that teaches itself with feedback, two ahead": [
        ENTROPY,
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


DAILY = (
    "critic of its own, warmed up",
    "adapters on four bits, greedy baseline and demonstrations, graded while others are sampled",
    "a policy that teaches itself with feedback, two ahead",
    "kept sampling sets and experts, carried groups",
)
"""Those that `make test` has; the others are for the night."""


@pytest.mark.run
@pytest.mark.parametrize("case", [c if c in DAILY else pytest.param(c, marks=pytest.mark.nightly) for c in CASES])
def test_with_an_algorithm_that_holds_more_than_a_policy(case, tmp_path):
    policy = EXPERTS if "experts" in case else ()
    begun = start("sft.steps=60", *policy)
    killed(tmp_path, "around updates", begun, *ONLY_RL, *FEW, *CASES[case])


STAGES = [
    "stages=[pretrain, sft, rl, preference, online_preference, distill, reward_model, sample, "
    "{name: sft_again, kind: sft, with: {steps: 12, demonstrations: sample}}, "
    "{name: reward_again, kind: reward_model, with: {steps: 8, continues: reward_model}}, "
    "{name: rl_again, kind: rl, with: {steps_per_round: 3, reward: {name: reward_model, params: "
    "{model: 'stage:reward_again', whiten: true}}}}, "
    "{name: reward_steps, kind: reward_model, with: {steps: 8, step_end: </think>, include_thinking: true}}, "
    "{name: rl_steps, kind: rl, with: {steps_per_round: 3, algorithm: {name: grpo_process}, "
    "reward: {name: reward_model, params: {model: 'stage:reward_steps'}}}}]",
    MARKED,
    "pretrain={steps: 12, num_lines: 50}",
    "rl.rounds=1",
    "rl.select.keep=all",
    "preference={loss: {name: dpo}, steps: 12, batch_size: 4}",
    "online_preference={loss: {name: dpo}, rounds: 1, steps_per_round: 3, prompts_per_step: 2, group_size: 6}",
    "distill={teacher: {stage: sft}, rounds: 1, steps_per_round: 3, prompts_per_step: 2, group_size: 2}",
    "reward_model={steps: 12, batch_size: 4, held_out: 0.5}",
    "sample={samples: 6}",
]


def test_every_kind_is_tried():
    stages = tiny(overrides=STAGES).stages
    assert {s.kind for s in stages} == set(RunConfig.kinds())
    assert [s.name for s in stages] == list(IN_EACH_STAGE)


@pytest.mark.run
def test_killed_before_and_in_every_stage_a_run_ends_as_if_never_killed(tmp_path):
    killed(tmp_path, "in each stage", start(), "sft.steps=25", *STAGES)
