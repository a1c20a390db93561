"""The plan counts as many adapters as a model of the same settings gets, on its experts too."""

from __future__ import annotations

import pytest
import torch
import transformers

from pipeline.commands.plan.adapters import adapters_of
from pipeline.commands.plan.shape import from_settings
from pipeline.models.adapted_layers import weight_of
from pipeline.models.lora import Adapted
from tests.commands.test_plan import recipe
from tests.commands.test_plan_times import MODELS

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
SOME = ("o_proj", "experts.down_proj"), ("down_proj",), ("experts.gate_up_proj",), ("up_proj", "kv_b_proj")


@pytest.mark.parametrize(
    ("model_type", "targets"),
    [*((name, ()) for name in MODELS), *(("deepseek_v3", some) for some in SOME), ("qwen3_moe", SOME[1])],
)
def test_as_many_as_the_model_gets(model_type: str, targets: tuple[str, ...]) -> None:
    own = {"num_key_value_heads": 4 if model_type == "deepseek_v3" else 2, "vocab_size": 128, **MODELS[model_type]}
    settings = transformers.AutoConfig.for_model(model_type, **SIZES, **own)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings)
    lora = {"rank": 3, "targets": list(targets)}
    counted = adapters_of(recipe({}, {"train": {"lora": lora}}), from_settings(settings))
    assert counted is not None
    adapted = Adapted(model, 3, 6.0, targets, 0, "empty")
    assert counted.parameters == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert counted.adapted == sum(weight_of(layer).numel() for layer in adapted.layers.values())
    of_experts = [w.numel() for layer in adapted.layers.values() if (w := weight_of(layer)).dim() == 3]
    assert counted.summed == pytest.approx(sum(of_experts) / SIZES["num_hidden_layers"])
