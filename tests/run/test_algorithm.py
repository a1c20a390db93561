"""The algorithm of a stage: its own parameters, corrections that are added, and routing that cannot be kept."""

from types import SimpleNamespace

import pytest
import torch

from tests.stages.tiny import tiny
from tests.train.sampled import model_of
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.run.algorithm import check_routing, resolve_parts, response_kinds, sampling, with_correction
from verizero.pipeline.run.session import StageSetup


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


def correction(parts: Parts) -> tuple[str, str, float, str]:
    params = parts.params
    return params.mismatch_level, params.mismatch_action, params.mismatch_cap, params.mismatch_stale


def test_correction_is_on_for_vllm_unless_the_algorithm_has_its_own() -> None:
    parts = resolve_parts(tiny().of_stage("rl"))
    assert parts.params.mismatch_level == "none"
    vllm = tiny(overrides=["rollout.engine=vllm"]).rollout
    warning = tiny(overrides=["rollout.engine=vllm", "rollout.parity.action=warn"]).rollout
    assert (tiny().rollout.parity_action("float32"), vllm.parity_action("float32")) == ("off", "correct")
    assert with_correction(parts, tiny().rollout, "float32") is with_correction(parts, warning, "float32") is parts
    own = with_correction(parts, vllm, "float32")
    assert correction(own) == ("token", "truncate", 2.0, "bypass")
    assert with_correction(own, vllm, "float32") is own
    _, rejects = load_algorithm("grpo", {"mismatch_reject": {"mean_k3": 0.1}})
    assert with_correction(rejects, vllm, "float32").params.mismatch_level == "none"


def test_the_embedded_engine_is_corrected_in_sixteen_bits() -> None:
    half = resolve_parts(tiny(overrides=["model.dtype=bfloat16"]).of_stage("rl"))
    whole = resolve_parts(tiny().of_stage("rl"))
    assert (half.params.mismatch_level, whole.params.mismatch_level) == ("token", "none")
    assert tiny().rollout.parity_action("bfloat16") == "correct"


def test_the_decoupled_objective_has_weights() -> None:
    _, bypass = load_algorithm("grpo", {})
    _, decoupled = load_algorithm("grpo", {"mismatch_stale": "decoupled"})
    config = tiny(overrides=["rollout.max_staleness=2"]).rollout
    assert with_correction(bypass, config, "float32") == bypass
    assert correction(with_correction(decoupled, config, "float32")) == ("token", "truncate", 2.0, "decoupled")


def test_a_stage_has_its_own_algorithm() -> None:
    again = {"name": "again", "kind": "rl", "with": {"algorithm": {"name": "rloo"}}}
    config = tiny({"stages": ["sft", "rl", again]})
    of_stage = {name: resolve_parts(config.of_stage(name)) for name in config.stage_names}
    assert of_stage["sft"] is None
    assert of_stage["rl"].params.kl_place == "loss"
    assert of_stage["again"] not in (None, of_stage["rl"])


def test_a_greedy_baseline_is_asked_for_after_the_group() -> None:
    def setup_of(name: str) -> StageSetup:
        config = tiny({"rl": {"algorithm": {"name": name, "kl_coef": 0, "allow": []}}}).of_stage("rl")
        return StageSetup(config, resolve_parts(config), keeps_routing=False)

    (sampled,) = response_kinds(setup_of("grpo"))
    assert sampled == ("rl", 6, sampling(setup_of("grpo")))
    _, (name, number, greedy) = response_kinds(setup_of("remax"))
    assert (name, number, greedy.temperature) == ("rl greedy", 1, 0)
