"""The way in which the responses of a training step are sampled."""

from __future__ import annotations

from tests.stages.tiny import tiny
from verizero.pipeline.run.algorithm import resolve_parts, response_kinds, sampling
from verizero.pipeline.run.session import StageSetup


def setup_of(**algorithm: object) -> StageSetup:
    plain = {"name": "grpo", "kl_coef": 0, "allow": [], **algorithm}
    config = tiny({"rl": {"algorithm": plain, "rounds": 2, "steps_per_round": 3}}).of_stage("rl")
    return StageSetup(config, resolve_parts(config), keeps_routing=False)


def test_a_greedy_baseline_is_asked_for_after_the_group() -> None:
    (sampled,) = response_kinds(setup_of())
    assert sampled == ("rl", 6, sampling(setup_of()))
    _, (name, number, greedy) = response_kinds(setup_of(name="remax"))
    assert (name, number, greedy.temperature) == ("rl greedy", 1, 0)
