"""The plan counts as many parameters and adapters as a model of the same settings has, on its experts too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.checks.test_plan import measured, recipe
from tests.stages.tiny import TREE
from verizero.pipeline.checks.plan.estimate import CARDS, plan, plan_lines
from verizero.pipeline.checks.plan.memory import GIB, memory
from verizero.pipeline.checks.plan.shape import SHAPES, adapters_of, from_settings, shape_of
from verizero.pipeline.config.load import load_recipe, parse
from verizero.pipeline.config.yaml_reader import merge
from verizero.pipeline.models.lora import Adapted

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": [1]},
    "qwen2_moe": {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
    },
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 3},
    "deepseek_v3": {
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 2,
        "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 20, "qk_rope_head_dim": 8, "v_head_dim": 12,
        "qk_nope_head_dim": 16, "n_group": 1, "topk_group": 1,
    },
}  # fmt: skip
SOME = ("o_proj", "experts.down_proj"), ("down_proj",), ("experts.gate_up_proj",), ("up_proj", "kv_b_proj")

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_model_sizes_is_what_a_plan_says() -> None:
    page = (ROOT / "docs/models.md").read_text()
    rows = re.findall(r"^\| (.+?) \| ([\d.]+), ([\d.]+) \|" + r" (\S+) \|" * len(CARDS), page, re.MULTILINE)
    assert len(rows) == 4
    for settings, *sizes, small, medium, large, wide in rows:
        config = load_recipe(ROOT / "configs/gsm8k_four_bits.yaml", re.findall("`(.+?)`", settings))
        found = plan(config, 1, "rtx4090")
        assert [f"{sum(parts.values()) / GIB:.1f}" for parts in found.peaks.values()] == sizes
        models = [str(name).split("/")[1] for name in found.largest_models.values()]
        assert models == [small, medium, large, wide]
        (line,) = (line for line in plan_lines(found) if line.startswith("largest dense model"))
        assert f"24 GiB {found.largest_models[24]}" in line
        of_memory = [SHAPES[str(name)].parameters for name in found.largest_models.values()]
        assert of_memory == sorted(of_memory)
    assert not plan(config, 2, "rtx4090").largest_models


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
    shape = from_settings(settings)
    assert shape.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.004)
    counted = adapters_of(recipe({}, {"train": {"lora": lora}}), shape)
    assert counted is not None
    adapted = Adapted(model, 3, 6.0, targets, 0)
    assert counted.parameters == sum(p.numel() for p in model.parameters() if p.requires_grad)
    of_experts = [p.numel() for n, p in model.named_parameters() if n in adapted._of_weights and p.dim() == 3]
    assert counted.summed == pytest.approx(sum(of_experts) / SIZES["num_hidden_layers"])


@pytest.mark.run
@pytest.mark.parametrize("checkpointing", [False, True])
def test_experts_summed_with_their_adapters_take_the_memory_that_is_counted(checkpointing: bool) -> None:
    settings = {
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 128, "max_position_embeddings": 256, "tie_word_embeddings": True,
    }  # fmt: skip
    train = {"micro_batch_tokens": 512, "lora": {"rank": 4}, "gradient_checkpointing": checkpointing}
    made = {"create": {"model_type": "qwen3_moe", "config": settings, "characters": "ab"}}
    config = parse(merge({**TREE, "model": made}, {"train": train}))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("qwen3_moe", **settings))
    counted = memory(config, shape_of(config), 1)
    kept = sum(size for name, size in counted.items() if name != "reference")
    assert kept == pytest.approx(measured(model, config, 8, 64), rel=0.1)
