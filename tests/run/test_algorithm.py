"""The algorithm of a stage: its own parameters, corrections that are added, and routing that cannot be kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.stages.tiny import tiny
from tests.train.sampled import model_of
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.parts import Mismatch
from verizero.pipeline.run.algorithm import check_routing, holds_reference, resolve_parts, with_correction


def test_routing_that_cannot_be_kept_is_refused_on_experts_and_harmless_on_dense_models() -> None:
    _, parts = load_algorithm("deepseek_v32", {})
    _, free = load_algorithm("deepseek_v32", {"keep_routing": False})
    strange = SimpleNamespace(
        config=SimpleNamespace(n_routed_experts=8, model_type="strange"), modules=lambda: [torch.nn.Linear(1, 1)]
    )
    check_routing(parts, SimpleNamespace(config=SimpleNamespace(num_experts=None)), "torch")
    check_routing(free, strange, "torch")
    check_routing(parts, model_of("qwen2_moe"), "torch")
    with pytest.raises(
        ConfigError, match=r"8 experts .*'strange' has no router .*set rl.algorithm.keep_routing: false"
    ):
        check_routing(parts, strange, "torch")
    with pytest.raises(ConfigError, match=r"rollout.engine='other' does not record it"):
        check_routing(parts, model_of("qwen2_moe"), "other")
    with pytest.raises(ConfigError, match=r"train.gradient_checkpointing computes activations again without it"):
        check_routing(parts, model_of("qwen2_moe"), "torch", recomputes=True)


def test_correction_is_on_for_vllm_unless_the_algorithm_has_its_own() -> None:
    parts = resolve_parts(tiny().of_stage("rl"))
    assert parts is not None
    assert parts.mismatch.level == "none"
    vllm = tiny(overrides=["rollout.engine=vllm"]).rollout
    warning = tiny(overrides=["rollout.engine=vllm", "rollout.parity.action=warn"]).rollout
    assert (tiny().rollout.parity_action("float32"), vllm.parity_action("float32")) == ("off", "correct")
    assert with_correction(parts, tiny().rollout, "float32") is with_correction(parts, warning, "float32") is parts
    own = with_correction(parts, vllm, "float32")
    assert own.mismatch == Mismatch(level="token")
    assert with_correction(own, vllm, "float32") is own
    _, rejects = load_algorithm("grpo", {"mismatch_reject": {"mean_k3": 0.1}})
    assert with_correction(rejects, vllm, "float32").mismatch.level == "none"


def test_the_embedded_engine_is_corrected_in_sixteen_bits() -> None:
    half = resolve_parts(tiny(overrides=["model.dtype=bfloat16"]).of_stage("rl"))
    whole = resolve_parts(tiny().of_stage("rl"))
    assert half is not None
    assert whole is not None
    assert (half.mismatch, whole.mismatch.level) == (Mismatch(level="token"), "none")
    assert tiny().rollout.parity_action("bfloat16") == "correct"


def test_the_decoupled_objective_has_weights() -> None:
    _, bypass = load_algorithm("grpo", {})
    _, decoupled = load_algorithm("grpo", {"mismatch_stale": "decoupled"})
    config = tiny(overrides=["rollout.max_staleness=2"]).rollout
    assert with_correction(bypass, config, "float32") == bypass
    assert with_correction(decoupled, config, "float32").mismatch == Mismatch(level="token", stale="decoupled")


def test_a_stage_has_its_own_algorithm() -> None:
    again = {"name": "again", "kind": "rl", "with": {"algorithm": {"name": "rloo"}}}
    config = tiny({"stages": ["sft", "rl", again]})
    of_stage = {name: resolve_parts(config.of_stage(name)) for name in config.stage_names}
    assert of_stage["sft"] is None
    assert of_stage["rl"] is not None
    assert of_stage["rl"].kl.where == "loss"
    assert of_stage["again"] not in (None, of_stage["rl"])


ONLINE = {"rounds": 1, "steps_per_round": 1, "prompts_per_step": 2, "group_size": 2}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"rl": {"algorithm": {"name": "grpo"}}}, True),
        ({"rl": {"algorithm": {"name": "dapo"}}}, True),  # it measures the KL
        ({"rl": {"algorithm": {"name": "dapo"}, "reference": {"schedule": "none"}}}, False),
        ({"stages": ["sft"]}, False),
        ({"stages": ["sft", "online_preference"], "online_preference": {**ONLINE, "loss": {"name": "dpo"}}}, True),
        ({"stages": ["sft", "online_preference"], "online_preference": {**ONLINE, "loss": {"name": "simpo"}}}, False),
    ],
)
def test_a_reference_is_kept_where_some_stage_has_one(changes: dict[str, Any], wanted: bool) -> None:
    assert holds_reference(tiny(changes)) is wanted
