"""The plan counts as many adapters as a model of the same settings gets, on its experts too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import transformers

from tests.commands.test_plan import measured, recipe, recipe_of
from tests.commands.test_plan_times import MODELS
from tests.stages.tiny import TREE
from verizero.pipeline.commands.plan.adapters import adapters_of
from verizero.pipeline.commands.plan.estimate import CARDS, plan, plan_lines
from verizero.pipeline.commands.plan.memory import GIB, engine_needs, memory
from verizero.pipeline.commands.plan.shape import SHAPES, from_settings, shape_of
from verizero.pipeline.config.load import load_recipe, parse
from verizero.pipeline.config.merge import merge
from verizero.pipeline.models.adapted_layers import weight_of
from verizero.pipeline.models.lora import Adapted

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
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


def test_the_bytes_of_a_publish_are_those_of_the_adapters_that_a_plan_counts() -> None:
    page = " ".join((ROOT / "docs/models.md").read_text().split())
    said = re.findall(r"(\d+) MB of (Qwen3-[\d.]+B) \(([\d.]+)%[^)]*?, ([\d.]+)%[^)]*\)", page)
    assert len(said) == 4
    config = load_recipe(ROOT / "configs/gsm8k_four_bits.yaml", ["train.lora={rank: 16}"])
    for size, name, of_float32, of_bfloat16 in said:
        shape = SHAPES[f"Qwen/{name}"]
        counted = adapters_of(config, shape)
        assert counted is not None
        num_bytes = 4 * counted.parameters
        assert f"{num_bytes / 1e6:.0f}" == size
        for width, share in ((4, of_float32), (2, of_bfloat16)):
            assert f"{num_bytes / (width * shape.parameters):.1%}" == f"{share}%"


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


@pytest.mark.integration
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


@pytest.mark.parametrize(
    ("quantize", "devices", "gib"), [("nf4", 1, 6.1), (None, 1, 15.5), ("nf4", 2, 7.8), (None, 2, 7.8)]
)
def test_vllms_share_holds_a_base_in_bits_where_it_is_not_divided(
    quantize: str | None, devices: int, gib: float
) -> None:
    vllm = {"engine": "vllm", "max_response_tokens": 128, "vllm": {"tensor_parallel": devices}}
    train = {"backend": "fsdp", "lora": {"rank": 16}}
    config = recipe_of("Qwen/Qwen3-8B", rollout=vllm, model={"quantize": quantize}, train=train)
    assert engine_needs(config, shape_of(config)) / 2**30 == pytest.approx(gib, rel=0.03)
