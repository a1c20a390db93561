"""A plan's times: sizes are those of models, shares those of a table, and published steps come out within a factor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from tests.commands.test_plan import recipe_of, seconds_of
from verizero.pipeline.commands.plan.devices import DEVICES, decode_seconds
from verizero.pipeline.commands.plan.estimate import plan, plan_lines
from verizero.pipeline.commands.plan.seconds import OWN_TOKEN_S, RESPONSE_S, TOKEN_S, Lengths, Work, seconds
from verizero.pipeline.commands.plan.shape import SHAPES, from_settings, shape_of
from verizero.pipeline.commands.plan.shares import Row, share_of, table
from verizero.pipeline.config.run import RunConfig

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
def test_shapes_have_as_many_parameters_as_their_cards_say(name: str, billions: float, active: float) -> None:
    """Active ones are without the input embeddings, of which a token reads one row."""
    shape = shape_of(recipe_of(name))
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.002)
    assert shape.active / 1e9 == pytest.approx(active, rel=0.002)


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


@pytest.mark.parametrize("model_type", list(MODELS))
def test_parameters_are_those_of_a_model_made_of_the_settings(model_type: str) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    grouped = 4 if model_type == "deepseek_v3" else 2
    settings = transformers.AutoConfig.for_model(
        model_type, **{**sizes, "num_key_value_heads": grouped, "vocab_size": 128, **MODELS[model_type]}
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings)
    assert from_settings(settings).parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.004)


def test_latent_attention_caches_one_vector_a_token() -> None:
    shape = SHAPES["deepseek-ai/DeepSeek-V3"]
    assert shape.cache(2) == 61 * (512 + 64) * 2
    assert shape.cache(2, expanded=True) == 61 * 128 * (192 + 128) * 2, "as transformers keeps it"
    assert SHAPES["Qwen/Qwen3-0.6B"].cache(2) == SHAPES["Qwen/Qwen3-0.6B"].cache(2, expanded=True) == 114_688


def test_the_bound_of_decoding_counts_weights_and_cache() -> None:
    """0.6B, 256 rows of 320 tokens, on a device that copies 3 TB/s; without the cache it would be 0.4 ms."""
    shape = SHAPES["Qwen/Qwen3-0.6B"]
    bound = decode_seconds(shape.parameters * 2, 256, 320, shape.cache(2), 3.0e12)
    assert bound == pytest.approx(3.53e-3, rel=0.01)
    assert decode_seconds(shape.parameters * 2, 256, 320, shape.cache(2), 3.0e12, computing_s=5e-3) == 5e-3


def test_attention_counts_and_more_in_longer_rows() -> None:
    shape = SHAPES["Qwen/Qwen2.5-7B"]
    short, long = (shape.forward_flops(1, length) / (2 * shape.active) for length in (1, 16384))
    assert short == pytest.approx(1, abs=1e-3)
    assert 1.18 < long < 1.26


def test_experts_are_read_once_some_row_has_them() -> None:
    shape = SHAPES["Qwen/Qwen3-30B-A3B"]
    assert shape.touched(1) == pytest.approx(shape.active)
    assert shape.touched(16) < shape.touched(128) < shape.touched(10_000) == pytest.approx(shape.used(128))
    assert SHAPES["Qwen/Qwen3-8B"].touched(99) == SHAPES["Qwen/Qwen3-8B"].active


def test_every_recipe_finds_its_shares_and_every_row_says_where_it_is_from() -> None:
    rows = table()
    assert {row.phase for row in rows} == set(PHASES)
    assert {row.gpu for row in rows} <= {None, *DEVICES}
    assert all(row.note for row in rows if row.source != "estimated")
    for phase in PHASES:
        for runs in ("torch", "vllm", "vllm_server", "deepspeed", "fsdp2", "peers"):
            if phase == "decode" and runs not in ("torch", "vllm"):
                continue
            for kind in ("dense", "mixture"):
                for gpu in DEVICES:
                    assert 0 < share_of(phase, runs, kind, 3.0, gpu).value <= 1


def row(share: float, **changes: Any) -> Row:
    return Row.model_validate({"phase": "decode", "share": share, "source": "estimated", **changes})


def test_a_measured_share_replaces_an_estimated_one_of_its_size_alone() -> None:
    rows = (
        row(0.2, runs="torch", billions=1.0),
        row(0.6, runs="torch", billions=16.0),
        row(0.9, runs="vllm"),
        row(0.3, runs="torch", billions=1.1, source="measured"),
        row(0.5, runs="torch", billions=1.0, source="published", gpu="l4"),
    )

    def value(billions: float, gpu: str = "h100", runs: str = "torch") -> float:
        return share_of("decode", runs, "dense", billions, gpu, rows).value

    assert value(0.1) == value(1.1) == 0.3
    assert value(100) == 0.6
    assert value((1.1 * 16) ** 0.5) == pytest.approx(0.45), "half way between two sizes"
    assert value(1.0, "l4") == 0.5, "of this GPU"
    assert value(3.0, runs="vllm") == 0.9
    assert share_of("decode", "torch", "dense", 4.0, "h100", rows).source == "estimated"
    with pytest.raises(LookupError, match=r"update by torch of a dense model on h100"):
        share_of("update", "torch", "dense", 1.0, "h100", rows)


def test_time_depends_on_what_the_recipe_runs() -> None:
    small = {engine: recipe_of("Qwen/Qwen2.5-0.5B", rollout={"engine": engine}) for engine in ("torch", "vllm")}
    times = {engine: seconds_of(config)["generate"] for engine, config in small.items()}
    shares = {engine: share_of("decode", engine, "dense", 0.494, "h100").value for engine in small}
    assert times["torch"] / times["vllm"] == pytest.approx(shares["vllm"] / shares["torch"], rel=0.05)
    dense, mixture = recipe_of("Qwen/Qwen3-8B"), recipe_of("Qwen/Qwen3-30B-A3B")
    per_weight = [seconds_of(c)["update"] / shape_of(c).active for c in (dense, mixture)]
    assert per_weight[1] > 3 * per_weight[0], "a mixture reaches a smaller share of the device's rate"


def test_servers_of_vllm_get_adapters_alone() -> None:
    def publish(**train: Any) -> float:
        config = recipe_of("Qwen/Qwen3-8B", train=train, rollout={"engine": "vllm_server"})
        return seconds_of(config)["publish"]

    whole, adapted = publish(), publish(backend="torch", lora={"rank": 16})
    assert adapted / whole == pytest.approx(0.011, rel=0.05), "docs/models.md: 175 MB of Qwen3-8B in bfloat16 are 1.1%"
    assert publish(backend="deepspeed", zero=1, lora={"rank": 16}) == whole, "merged weights"


def test_ranks_gather_bits_of_a_quantised_base() -> None:
    def times(quantize: str | None) -> dict[str, float]:
        train = {"backend": "fsdp", "lora": {"rank": 16}}
        return seconds_of(recipe_of("Qwen/Qwen3-8B", model={"quantize": quantize}, train=train))

    bits, numbers = times("nf4"), times(None)
    assert 0.25 < bits["communication"] / numbers["communication"] < 0.4, "embeddings stay in 16 bits"
    assert bits["publish"] / numbers["publish"] == pytest.approx(0.011, rel=0.05), "adapters, not the merged weights"


def test_a_pass_before_the_update_is_counted_where_it_is_run() -> None:
    def phases(name: str = "grpo", **params: Any) -> dict[str, float]:
        return seconds_of(recipe_of("Qwen/Qwen2.5-7B", rl={"algorithm": {"name": name, **params}}))

    assert "old log-probs" not in phases()
    assert "old log-probs" not in phases(num_epochs=2), "the first update keeps what it computes"
    two = phases(num_minibatches=2)
    assert two["old log-probs"] == two["reference"] > 0
    assert "score norms" not in two
    assert phases("otb")["score norms"] == 2 * two["reference"], "at the temperature and at half of it"
    three = phases("otb", kl_in="reward", kl_coef=0.01)
    assert three["score norms"] == three["old log-probs"] == two["reference"]


def test_rows_that_transformers_decodes_are_not_refilled() -> None:
    """Twice the rows that fit take twice the time; refilled slots take less, and vLLM refills a mixture too."""

    def generating(name: str, prompts: int, engine: str) -> float:
        rl = {"prompts_per_step": prompts, "group_size": 8}
        config = recipe_of(name, rl=rl, rollout={"engine": engine, "max_rows": 64})
        return seconds_of(config, mean_prompt=1e-6)["generate"]

    ratios = {
        (name, engine): generating(name, 128, engine) / generating(name, 64, engine)
        for name in ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B")
        for engine in ("torch", "vllm")
    }
    waves = ratios.pop(("Qwen/Qwen3-30B-A3B", "torch"))
    assert waves == pytest.approx(2, rel=1e-3)
    assert all(1 < ratio < 1.9 for ratio in ratios.values())


def test_the_update_is_counted_by_its_operations() -> None:
    config = recipe_of("Qwen/Qwen2.5-7B")
    assert config.rl is not None
    tokens, share = config.rl.prompts_per_step * config.rl.group_size * (4096 + 2048), 0.30
    flops = 3 * tokens * (2 * 7.0706e9 + 28 * 28 * 256 * 6144)
    assert seconds_of(config)["update"] == pytest.approx(flops / (8 * 989e12 * share), rel=0.01)


def test_known_lengths_of_prompts_shorten_the_time_and_the_data_plane_scales_by_tokens() -> None:
    config = recipe_of("Qwen/Qwen2.5-7B", data={"max_prompt_tokens": 2048})
    longest, known = seconds_of(config), seconds_of(config, mean_prompt=100)
    assert all(known[phase] < longest[phase] for phase in ("generate", "update", "reference", "data"))
    assert config.rl is not None
    responses = config.rl.prompts_per_step * config.rl.group_size
    for gpus in (8, 512):
        wanted = (OWN_TOKEN_S / gpus + TOKEN_S) * responses * (4096 + 100) + RESPONSE_S * responses
        assert seconds_of(config, gpus, 100)["data"] == pytest.approx(wanted)
    said = [plan(config, 8, "h200", mean_prompt=mean) for mean in (None, 100)]
    assert said[0].peaks == said[1].peaks, "memory is that of the longest"
    assert "decode 5" in plan_lines(said[0])[-1]


PUBLISHED = {
    "meta-llama/Llama-3.1-8B": (16, 2048, 1060, 4096, 1, 97.7),
    "Qwen/Qwen3-32B": (32, 2048, 3206, 4096, 4, 393),
    "Qwen/Qwen3-30B-A3B": (32, 2048, 3154, 4096, 4, 225),
    "Qwen/Qwen3-235B-A22B": (128, 512, 5671, 8192, 16, 506),
    "deepseek-ai/DeepSeek-V3": (256, 512, 745, 1536, 32, 154),
}
"""NeMo RL 0.4, GRPO on H100 with Megatron and vLLM, on policy, from its page of performance.

Model: GPUs, responses, their mean and greatest number of tokens, GPUs of an engine, seconds of a step. 512 responses
are an optimiser step. Its tokens a second and GPU are of about 110 tokens of prompt with each response.
"""


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_published_steps_come_out_within_a_factor_of_two(name: str) -> None:
    gpus, responses, mean, longest, over, published = PUBLISHED[name]
    config: RunConfig = recipe_of(
        name,
        rl={
            "prompts_per_step": responses // 32,
            "group_size": 32,
            "algorithm": {"name": "grpo", "num_minibatches": responses // 512},
        },
        rollout={"engine": "vllm", "max_response_tokens": longest, "vllm": {"tensor_parallel": over}},
    )
    work = Work(config, shape_of(config), gpus, DEVICES["h100"], Lengths(110, mean, longest), peers=True)
    assert published / 2 < sum(seconds(work).values()) < published * 2
