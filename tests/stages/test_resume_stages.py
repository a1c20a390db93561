"""A run of stages of every kind, killed before and in each, ends each stage with the bytes of one never killed."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.stages.broken import killed
from tests.stages.kill_driver import IN_EACH_STAGE
from tests.stages.start import start
from tests.stages.tiny import tiny
from verizero.pipeline.config.run import RunConfig

STAGES = [
    "stages=[pretrain, sft, rl, preference, online_preference, distill, reward_model, sample, "
    "{name: sft_again, kind: sft, with: {steps: 12, demonstrations: sample}}, "
    "{name: reward_again, kind: reward_model, with: {steps: 8, continues: reward_model}}, "
    "{name: rl_again, kind: rl, with: {steps_per_round: 3, reward: {name: reward_model, params: "
    "{model: 'stage:reward_again', whiten: true}}}}, "
    "{name: reward_steps, kind: reward_model, with: {steps: 8, step_end: </think>, include_thinking: true}}, "
    "{name: rl_steps, kind: rl, with: {steps_per_round: 3, algorithm: {name: grpo_process}, "
    "reward: {name: reward_model, params: {model: 'stage:reward_steps'}}}}]",
    "data.train.0.verifier={name: equations}",
    "pretrain={steps: 12, num_lines: 50}",
    "rl.rounds=1",
    "rl.select.keep=all",
    "preference={loss: {name: dpo}, steps: 12, batch_size: 4}",
    "online_preference={loss: {name: dpo}, rounds: 1, steps_per_round: 3, prompts_per_step: 2, group_size: 6}",
    "distill={teacher: {stage: sft}, rounds: 1, steps_per_round: 3, prompts_per_step: 2, group_size: 2}",
    "reward_model={steps: 12, batch_size: 4}",
    "sample={samples: 6}",
]


def test_every_kind_is_tried() -> None:
    stages = tiny(overrides=STAGES).stages
    assert {s.kind for s in stages} == set(RunConfig.kinds())
    assert [s.name for s in stages] == list(IN_EACH_STAGE)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How the run never killed ended, and the one that was killed many times."""
    return killed(tmp_path_factory.mktemp("killed"), start(), "sft.steps=25", *STAGES)


@pytest.mark.integration
@pytest.mark.parametrize("stage", IN_EACH_STAGE)
def test_killed_before_and_in_a_stage_it_ends_as_if_never_killed(ends: dict[str, Any], stage: str) -> None:
    (killed,) = ends["killed"].values()
    kills = [(name, *kill) for name, some in IN_EACH_STAGE.items() for kill in some]
    own = [(kill, death) for kill, death in zip(kills, killed["deaths"], strict=True) if kill[0] == stage]
    assert {death for _, death in own} == {-signal.SIGKILL}, f"a kill did not happen where it was meant to: {own}"
    assert killed["stages"][stage] == ends["stages"][stage]


@pytest.mark.integration
def test_killed_in_every_stage_the_run_ends_as_if_never_killed(ends: dict[str, Any]) -> None:
    (killed,) = ends["killed"].values()
    assert killed["last"] == 0
    assert killed["end"] == ends["whole"]
