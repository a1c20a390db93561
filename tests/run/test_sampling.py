"""The way in which the responses of a training step are sampled."""

from __future__ import annotations

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.run.algorithm import resolve_parts, response_kinds, sampling, temperature
from verizero.pipeline.run.session import StageSetup
from verizero.pipeline.run.state import RunState, StageState


def setup_of(**algorithm: object) -> StageSetup:
    plain = {"name": "grpo", "kl_coef": 0, "kl_target": None, "kl_horizon": None, "allow": [], **algorithm}
    config = tiny({"rl": {"algorithm": plain, "rounds": 2, "steps_per_round": 3}}).of_stage("rl")
    return StageSetup(config, resolve_parts(config), None, keeps_routing=False)


def test_a_stage_that_is_entered_late_starts_at_the_recipes_temperature() -> None:
    setup = setup_of(temperature_end=0.5)
    late = RunState(StageState("rl", first_rl_step=40), rl_step=40)
    assert temperature(setup, late) == setup.config.rollout.temperature == 1.0


def test_the_temperature_falls_by_step_and_is_known_ahead() -> None:
    setup, state = setup_of(temperature_end=0.5), RunState(StageState("rl", first_rl_step=40), rl_step=40)
    by_step = [temperature(setup, RunState(StageState("rl", first_rl_step=40), rl_step=40 + s)) for s in range(6)]
    assert by_step == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5])
    assert [temperature(setup, state, ahead) for ahead in range(8)] == pytest.approx([*by_step, 0.5, 0.5])


def test_a_greedy_baseline_is_asked_for_after_the_group() -> None:
    (sampled,) = response_kinds(setup_of(), 0.8)
    assert sampled == ("rl", 6, sampling(setup_of(), 0.8))
    _, (name, number, greedy) = response_kinds(setup_of(name="remax"), 0.8)
    assert (name, number, greedy.temperature) == ("rl greedy", 1, 0)
