"""A plan counts: parameters and adapters are those of models, on experts too, and shares of times those of a table."""

import re

import pytest
import torch
import transformers

from tests.plan.test_estimate import measured, recipe, recipe_of, seconds_of
from tests.source import ROOT
from tests.stages.tiny import TREE
from verizero.pipeline.config.load import load_recipe, parse
from verizero.pipeline.config.yaml_reader import merge
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.plan.devices import DEVICES
from verizero.pipeline.plan.estimate import CARDS, plan, plan_lines
from verizero.pipeline.plan.memory import GIB, memory
from verizero.pipeline.plan.seconds import (
    OWN_TOKEN_S,
    RESPONSE_S,
    TOKEN_S,
    Row,
    share_of,
    table,
)
from verizero.pipeline.plan.shape import SHAPES, adapters_of, from_settings, shape_of

PHASES = ("copy", "decode", "forward", "update", "link", "publish")


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("Qwen/Qwen2.5-0.5B", 0.494, 0.494),
        ("Qwen/Qwen2.5-7B-Instruct", 7.616, 7.07),
        ("Qwen/Qwen3-0.6B-Base", 0.596, 0.596),
        ("Qwen/Qwen3-30B-A3B", 30.53, 3.04),
        ("Qwen/Qwen3-32B", 32.76, 31.98),
        ("Qwen/Qwen3-235B-A22B", 235.09, 21.57),
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03, 7.5),
        ("deepseek-ai/DeepSeek-V3", 671.03, 36.63),
    ],
)
def test_shapes_have_as_many_parameters_as_their_cards_say(name, billions, active):
    """Active ones are without the input embeddings, of which a token reads one row."""
    shape = shape_of(recipe_of(name))
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.002)
    assert shape.active / 1e9 == pytest.approx(active, rel=0.002)


def test_every_recipe_finds_its_shares_and_every_row_says_where_it_is_from():
    rows = table()
    assert {row.phase for row in rows} == set(PHASES)
    assert {row.gpu for row in rows} <= {None, *DEVICES}
    assert all(row.note for row in rows if row.source != "estimated")
    for phase in PHASES:
        for runs in ("torch", "vllm", "vllm_server", "deepspeed", "fsdp"):
            if phase == "decode" and runs not in ("torch", "vllm"):
                continue
            for kind in ("dense", "mixture"):
                for gpu in DEVICES:
                    assert 0 < share_of(phase, runs, kind, 3.0, gpu).value <= 1


def row(share, **changes):
    return Row(**{"phase": "decode", "share": share, "source": "estimated", **changes})


def test_a_measured_share_replaces_an_estimated_one_of_its_size_alone():
    rows = (
        row(0.2, runs="torch", billions=1.0),
        row(0.6, runs="torch", billions=16.0),
        row(0.9, runs="vllm"),
        row(0.3, runs="torch", billions=1.1, source="measured"),
        row(0.5, runs="torch", billions=1.0, source="published", gpu="l4"),
    )

    def value(billions, gpu="h100", runs="torch"):
        return share_of("decode", runs, "dense", billions, gpu, rows).value

    assert value(0.1) == value(1.1) == 0.3
    assert value(100) == 0.6
    assert value((1.1 * 16) ** 0.5) == pytest.approx(0.45), "half way between two sizes"
    assert value(1.0, "l4") == 0.5, "of this GPU"
    assert value(3.0, runs="vllm") == 0.9
    assert share_of("decode", "torch", "dense", 4.0, "h100", rows).source == "estimated"
    with pytest.raises(LookupError, match=r"update by torch of a dense model on h100"):
        share_of("update", "torch", "dense", 1.0, "h100", rows)


def test_servers_of_vllm_get_adapters_alone():
    def publish(**train):
        config = recipe_of("Qwen/Qwen3-8B", train=train, rollout={"engine": "vllm_server"})
        return seconds_of(config)["publish"]

    whole, adapted = publish(), publish(backend="torch", lora={"rank": 16})
    assert adapted / whole == pytest.approx(0.011, rel=0.05), "docs/models.md: 175 MB of Qwen3-8B in bfloat16 are 1.1%"
    assert publish(backend="deepspeed", zero=1, lora={"rank": 16}) == whole, "merged weights"


def test_ranks_gather_bits_of_a_quantised_base():
    def times(quantize):
        train = {"backend": "fsdp", "lora": {"rank": 16}}
        return seconds_of(recipe_of("Qwen/Qwen3-8B", model={"quantize": quantize}, train=train))

    bits, numbers = times("nf4"), times(None)
    assert 0.25 < bits["communication"] / numbers["communication"] < 0.4, "embeddings stay in 16 bits"
    assert bits["publish"] / numbers["publish"] == pytest.approx(0.011, rel=0.05), "adapters, not the merged weights"


def test_replicas_on_two_nodes_meet_once_an_update():
    def planned(**train):
        return plan(recipe_of("Qwen/Qwen2.5-7B", train={"backend": "fsdp", **train}), 16, "h100")

    flat, two = planned(replicas=1), planned()
    for part in ("weights", "gradients", "optimizer"):
        assert two.peaks["update"][part] == 2 * flat.peaks["update"][part], "8 GPUs divide them, not 16"
    # All that a micro-batch gathers and sums crosses the nodes' border without replicas.
    assert two.phases["communication"] < flat.phases["communication"] / 5
    assert planned(replicas=2) == two


def test_the_update_is_counted_by_its_operations():
    config = recipe_of("Qwen/Qwen2.5-7B")
    tokens, share = config.rl.prompts_per_step * config.rl.group_size * (4096 + 2048), 0.30
    flops = 3 * tokens * (2 * 7.0706e9 + 28 * 28 * 256 * 6144)
    assert seconds_of(config)["update"] == pytest.approx(flops / (8 * 989e12 * share), rel=0.01)


def test_known_lengths_of_prompts_shorten_the_time_and_the_data_plane_scales_by_tokens():
    config = recipe_of("Qwen/Qwen2.5-7B", data={"max_prompt_tokens": 2048})
    longest, known = seconds_of(config), seconds_of(config, mean_prompt=100)
    assert all(known[phase] < longest[phase] for phase in ("generate", "update", "reference", "data"))
    responses = config.rl.prompts_per_step * config.rl.group_size
    for gpus in (8, 512):
        wanted = (OWN_TOKEN_S / gpus + TOKEN_S) * responses * (4096 + 100) + RESPONSE_S * responses
        assert seconds_of(config, gpus, 100)["data"] == pytest.approx(wanted)
    said = [plan(config, 8, "h200", mean_prompt=mean) for mean in (None, 100)]
    assert said[0].peaks == said[1].peaks, "memory is that of the longest"
    assert "decode 5" in plan_lines(said[0])[-1]


SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
MODELS = {
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


def test_the_table_of_model_sizes_is_what_a_plan_says():
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
def test_as_many_as_the_model_gets(model_type, targets):
    own = {"num_key_value_heads": 4 if model_type == "deepseek_v3" else 2, "vocab_size": 128, **MODELS[model_type]}
    settings = transformers.AutoConfig.for_model(model_type, **SIZES, **own)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings)
    lora = {"rank": 3, "targets": list(targets)}
    shape = from_settings(settings)
    assert shape.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.004)
    counted = adapters_of(recipe({}, {"train": {"lora": lora}}), shape)
    adapted = Adapted(model, 3, 6.0, targets, 0)
    assert counted.parameters == sum(p.numel() for p in model.parameters() if p.requires_grad)
    of_experts = [p.numel() for n, p in model.named_parameters() if n in adapted._of_weights and p.dim() == 3]
    assert counted.summed == pytest.approx(sum(of_experts) / SIZES["num_hidden_layers"])


@pytest.mark.run
@pytest.mark.parametrize("checkpointing", [False, True])
def test_experts_summed_with_their_adapters_take_the_memory_that_is_counted(checkpointing):
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
