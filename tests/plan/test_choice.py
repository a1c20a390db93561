"""What a plan chooses where a recipe says auto: settings that fit, and of these the fastest."""

import pytest
import transformers

from tests.plan.test_estimate import recipe_of
from tests.source import ROOT
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.recipes import load_recipe
from verizero.pipeline.plan.choice import by_plan, choices, fits_everywhere
from verizero.pipeline.plan.devices import DEVICES, device_named
from verizero.pipeline.plan.estimate import plan
from verizero.pipeline.plan.shape import SHAPES
from verizero.pipeline.run import opening
from verizero.pipeline.train.ranks import ALONE

OPEN = {"gradient_checkpointing": "auto", "micro_batch_tokens": "auto"}
FIXED = (
    "train.gradient_checkpointing=true", "train.micro_batch_tokens=4096", "train.replicas=1",
    "rollout.vllm.gpu_memory_share=0.4",
)  # fmt: skip


def on_one(gpu, name="Qwen/Qwen2.5-1.5B", **changes):
    config = recipe_of(
        name, **{"rollout": {"engine": "vllm"}, **changes, "train": {**OPEN, **changes.get("train", {})}}
    )
    return config, by_plan(config, SHAPES[name], 1, DEVICES[gpu])


def test_memory_is_spent_before_time():
    small, middle, large = (on_one(gpu)[1].train for gpu in ("l4", "a100", "h200"))
    assert large.micro_batch_tokens == 16384
    assert not large.gradient_checkpointing
    assert not middle.gradient_checkpointing
    assert small.micro_batch_tokens == 2048, "nothing fits, so what takes least"
    assert small.gradient_checkpointing


def test_what_the_recipe_says_stays():
    config, chosen = on_one("a100", train={"gradient_checkpointing": True, "micro_batch_tokens": 640})
    assert choices(config, chosen) == [f"rollout.vllm.gpu_memory_share={chosen.rollout.vllm.gpu_memory_share}"]
    said = on_one("a100", rollout={"engine": "vllm", "vllm": {"gpu_memory_share": 0.3}})[1]
    assert said.rollout.vllm.gpu_memory_share == 0.3


def test_the_chosen_fits_and_vllm_gets_what_is_left():
    _, chosen = on_one("a100")
    assert fits_everywhere(chosen, SHAPES["Qwen/Qwen2.5-1.5B"], 1, DEVICES["a100"])
    assert chosen.rollout.vllm.gpu_memory_share > 0.4
    ahead = on_one("a100", rl={"rounds": 1}, rollout={"engine": "vllm", "max_staleness": 1})[1]
    assert ahead.rollout.vllm.gpu_memory_share < chosen.rollout.vllm.gpu_memory_share, "the update needs its own"


def test_routes_that_are_kept_are_not_computed_again():
    kept = {"algorithm": {"name": "grpo", "keep_routing": True}}
    assert not on_one("l4", "Qwen/Qwen3-30B-A3B", rl=kept)[1].train.gradient_checkpointing


def test_a_run_chooses_by_the_card_that_torch_sees(monkeypatch):
    class Card:
        name, total_memory = "NVIDIA A100-SXM4-80GB", 80 << 30

    config, chosen = on_one("a100")
    sizes = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12}
    like = transformers.Qwen2Config(
        **sizes, num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True, max_window_layers=28
    )
    monkeypatch.setattr(opening, "settings_of_policy", lambda config: like)
    assert opening.on_gpus(config, ALONE, Card) == chosen


@pytest.mark.parametrize(
    ("torch_says", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA L40S", "l40s"),
        ("new", "h100"),
    ],
)
def test_a_card_has_the_rates_of_its_name_and_the_memory_that_is_there(torch_says, name):
    made = device_named(torch_says, 50.0, 4)
    assert (made.name, made.memory_gib, made.per_node) == (name, 50.0, 4)


def table():
    """The rows of docs/gpu.md."""
    tree = load_recipe(ROOT / "configs/cluster/dapo_qwen2_5_7b.yaml").model_dump(mode="json")
    rows = []
    for model, gpus in (
        (m, n) for m in ("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-7B", "Qwen/Qwen3-32B") for n in (1, 8, 16, 128)
    ):
        shared = ["rollout.vllm.tensor_parallel=8"] if gpus > 1 and "32B" in model else []
        over = [f"model.path={model}", *shared]
        fixed, chosen = plan(parse(tree, [*over, *FIXED]), gpus, "h100"), plan(parse(tree, over), gpus, "h100")
        pairs = (word.split("=") for word in chosen.chosen)
        words = ", ".join(f"{name.split('.')[-1]}={value}" for name, value in pairs)
        rows.append(
            f"| {model.split('/')[1]} | {gpus} | {cell(fixed)} | {cell(chosen)} | {words if chosen.fits else ''} |"
        )
    return rows


def cell(made):
    return f"{made.phases['update']:.1f} + {made.phases.get('communication', 0.0):.1f}" if made.fits else "does not fit"


def test_the_table_of_the_docs_is_what_plans_say():
    text = (ROOT / "docs/gpu.md").read_text()
    assert [row for row in table() if row not in text] == []
