"""The algorithm of a stage: its own parameters, corrections that are added, and routing that cannot be kept."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pipeline.algorithms.base import load_algorithm
from pipeline.errors import ConfigError
from pipeline.run.algorithm import check_routing
from tests.train.sampled import model_of


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
