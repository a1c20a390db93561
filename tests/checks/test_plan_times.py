"""A plan's times: sizes are those of models, and shares those of a table."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checks.test_plan import recipe_of, seconds_of
from verizero.pipeline.checks.plan.devices import DEVICES
from verizero.pipeline.checks.plan.estimate import plan, plan_lines
from verizero.pipeline.checks.plan.seconds import (
    OWN_TOKEN_S,
    RESPONSE_S,
    TOKEN_S,
    Row,
    share_of,
    table,
)
from verizero.pipeline.checks.plan.shape import shape_of

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


def test_every_recipe_finds_its_shares_and_every_row_says_where_it_is_from() -> None:
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


def row(share: float, **changes: Any) -> Row:
    return Row(**{"phase": "decode", "share": share, "source": "estimated", **changes})


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
