"""A plan's memory is what a backward takes, within 15 %; its settings make recipes fit; sizes are those of models."""

import gc
from contextlib import contextmanager

import pytest
import torch
import transformers

from tests.peak import Live
from tests.stages.tiny import TREE
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.config.yaml_reader import merge
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.decoder import Decoder, habits_of
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.models.quantized import NF4_BITS
from verizero.pipeline.plan.devices import DEVICES
from verizero.pipeline.plan.estimate import plan, plan_lines, plans
from verizero.pipeline.plan.memory import generating, memory, peaks
from verizero.pipeline.plan.seconds import Lengths, Work, seconds
from verizero.pipeline.plan.shape import shape_of
from verizero.pipeline.train.backend import Backend


@contextmanager
def watched(model):
    alive = Live()
    with alive:
        for p in model.parameters():
            alive.see(p.untyped_storage())
        yield alive


SIZES = {
    "wide": {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
                 "num_key_value_heads": 1, "vocab_size": 512},
    "deep": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 8, "num_attention_heads": 4,
                 "num_key_value_heads": 4, "vocab_size": 2048},
    "vocabulary": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
                       "num_key_value_heads": 2, "vocab_size": 16384},
}  # fmt: skip


def recipe(settings, changes=None):
    model = {"create": {"model_type": "qwen2", "config": settings, "characters": "ab"}}
    return parse(merge({**TREE, "model": model}, changes or {}))


OPTIONS = {
    "chunks": {"logits_chunk_tokens": 128},
    "chunks, checkpointing": {"logits_chunk_tokens": 128, "gradient_checkpointing": True},
    "adapters": {"lora": {"rank": 8}},
    "moments in 8 bits": {"kind": "adamw_8bit"},
    "a base in 4 bits": {"lora": {"rank": 8}, "quantize": "nf4"},
    "some adapters": {"lora": {"rank": 4, "targets": ["q_proj", "v_proj"]}},
    "adapters, checkpointing, chunks": {
        "lora": {"rank": 8},
        "gradient_checkpointing": True,
        "logits_chunk_tokens": 128,
    },
}
PLAIN = [
    ("wide", dtype, {"micro_batch_tokens": 512, "gradient_checkpointing": dtype == "bfloat16"}, 64)
    for dtype in ("float32", "bfloat16")
]
# The plan counts options apart from sizes and types: each option is tried with one pair of the two.
PAIRS = (("wide", "bfloat16"), ("vocabulary", "float32"), ("deep", "float32"))
WITH_OPTIONS = [
    (*pair, {"micro_batch_tokens": 512, **train}, 64)
    for train, pair in zip(OPTIONS.values(), (PAIRS[i] for i in (0, 1, 2, 0, 2, 1, 0)), strict=True)
]


@pytest.mark.run
@pytest.mark.parametrize(("size", "dtype", "train", "length"), [*PLAIN, *WITH_OPTIONS])
def test_memory_is_what_a_backward_takes(size, dtype, train, length):
    settings = {**SIZES[size], "max_position_embeddings": 256, "tie_word_embeddings": True}
    others = {"kind": "adamw", "quantize": None}  # options that are not of `train`
    kind, quantize = {"kind": train.get("kind", "adamw")}, train.get("quantize")
    train = {name: value for name, value in train.items() if name not in others}
    config = recipe(
        settings,
        {
            "train": {"logits_chunk_tokens": None, **train},
            "model": {"dtype": dtype, "quantize": quantize},
            "rl": {"optimizer": kind},
        },
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model("qwen2", **settings), dtype=getattr(torch, dtype)
    )
    model.register_forward_hook(lambda *_: None)  # so that transformers' own blocks are computed, as on a GPU
    shape = shape_of(config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    kept = {"weights", "gradients", "optimizer", "activations", "logits"}
    counted = sum(size for name, size in memory(config, shape, 1).items() if name in kept)
    assert counted == pytest.approx(measured(model, config, 8, length), rel=0.15)


@pytest.mark.run
def test_memory_of_a_critic_is_what_it_keeps():
    settings = {**SIZES["vocabulary"], "max_position_embeddings": 256, "tie_word_embeddings": False}
    config = recipe(settings, {"rl": {"algorithm": {"name": "ppo", "num_minibatches": 1}}})
    shape = shape_of(config)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("qwen2", **settings))
    backend = Backend(model)
    backend.start_critic(False, OptimizerConfig(learning_rate=1e-4), 3)
    critic = backend.critic
    with watched(critic.trained.model) as alive:
        ids, where = torch.randint(50, (2, 4)), torch.tensor([[False, True, True, True]] * 2)
        critic.backward(critic.values(ids, where).sum())
        critic.step()
        critic.backward(critic.values(ids, where).sum())
        gc.collect()
        assert memory(config, shape, 1)["critic"] == pytest.approx(alive.now(), rel=0.15)
    shared = recipe(settings, {"rl": {"algorithm": {"name": "ppo", "num_minibatches": 1, "critic_shared": True}}})
    assert "critic" not in memory(shared, shape, 1)


def measured(model, recipe, rows, length):
    """The peak of a step's second micro-batch, all its tokens trained on, after AdamW has made its moments."""
    with watched(model) as alive:
        how, on = recipe.train.lora, None if recipe.model.quantize is None else "cpu"
        adapted = None if how is None else Adapted(model, how.rank, how.alpha, how.targets, 0, quantize_on=on)
        backend = Backend(model, config=recipe.train, adapted=adapted)
        for p in model.parameters():
            alive.see(p.untyped_storage())
        backend.start(recipe.rl.optimizer.model_copy(update={"learning_rate": 1e-4}), 3)
        ids = torch.randint(model.config.vocab_size, (rows, length + 1))
        where = torch.ones(ids.shape, dtype=torch.bool)
        where[:, 0] = False

        def backward(rows):
            logprobs, _ = backend.logprobs(ids[:rows], where[:rows], 1.0, entropy=True)
            backend.backward(logprobs.sum())

        backward(1)  # moments and gradients are as large after few tokens as after many
        backend.step()
        backward(1)
        alive.peak = alive.now()
        backward(rows)
        return alive.peak


def recipe_of(name, **changes):
    tree = {**TREE, "model": {"path": name, "dtype": "bfloat16"}, "stages": ["rl"]}
    return parse(merge(merge(tree, {"rollout": {"max_response_tokens": 8192, "engine": "torch"}}), changes))


def test_what_does_not_fit_says_what_would():
    config = recipe_of("Qwen/Qwen2.5-7B", rl={"prompts_per_step": 512, "group_size": 16})
    found = plan(config, 8, "h100")
    assert not found.fits
    assert found.settings
    said = "\n".join(plan_lines(found))
    assert "does not fit" in said
    assert all(f"--set {words}" in said for words in found.settings[0].split())
    turned = [w for words in found.settings for w in words.split()]
    alone = plan(parse(config.model_dump(mode="json"), turned), 8, "h100")
    assert alone.fits
    assert alone.peaks == found.peaks_with_settings
    assert alone.phases == found.phases, "the time is that of the recipe that fits"
    assert found.phases["generate"] > seconds_of(config)["generate"], "fewer rows at a time take longer"
    assert plan(config, 1, "rtx4090").settings is None, "7 billion parameters and a reference fit no 24 GiB"


def test_a_base_in_four_bits_fits_where_the_whole_one_does_not():
    lora = {"lora": {"rank": 16}, "gradient_checkpointing": True, "micro_batch_tokens": 2048}
    lean = {
        "rl": {"reference": {"schedule": "none"}, "algorithm": {"name": "dapo"}},
        "rollout": {"max_rows": 16, "max_response_tokens": 1024},
    }
    whole, bits = (
        recipe_of("Qwen/Qwen3-8B", model={"quantize": how}, train={"backend": "torch", **lora}, **lean)
        for how in (None, "nf4")
    )
    assert not plan(whole, 1, "rtx4090").fits
    found = plan(bits, 1, "rtx4090")
    assert found.fits
    linear = 36 * 4096 * (2 * 4096 + 2 * 1024 + 3 * 12288)
    wanted = (shape_of(bits).parameters - linear) * 2 + linear * NF4_BITS / 8
    assert 0 < found.peaks["update"]["weights"] - wanted < 2**28, "with adapters"


def seconds_of(config, gpus=8, mean_prompt=None):
    """The seconds of the recipe as it is, whether it fits or not."""
    return seconds(Work(config, shape_of(config), gpus, DEVICES["h100"], Lengths.of(config, 0.5, mean_prompt)))


def test_vllm_is_awake_while_it_generates_and_the_rest_of_the_gpu_must_hold_what_stays():
    def fits(share, **train):
        vllm = {"engine": "vllm", "vllm": {"gpu_memory_share": share}}
        config = recipe_of("Qwen/Qwen2.5-7B", rollout=vllm, train={"backend": "deepspeed", **train})
        both = peaks(config, shape_of(config), 8, DEVICES["h100"])
        assert both["generate"]["vLLM's share"] == share * 80 * 2**30
        assert "vLLM's share" not in both["update"], "it sleeps"
        assert both["update"]["vLLM's graphs"] == 2**30, "which its sleep leaves"
        assert {"gradients", "activations", "logits"}.isdisjoint(both["generate"])
        return plan(config, 8, "h100").fits

    lean = {"zero": 2, "gradient_checkpointing": True, "logits_chunk_tokens": 512}
    assert fits(0.4, **lean)
    assert not fits(0.9, **lean), "awake, it leaves no room for weights, reference and optimiser"
    assert not fits(0.1, **lean), "8 GiB do not hold the weights"
    assert not fits(0.4, zero=1, gradient_checkpointing=False)
    assert fits(0.4, zero=1), "the plan computes activations again"


@pytest.mark.parametrize("size", ["wide", "deep"])
def test_memory_of_generating_is_what_the_decoder_takes(size):
    """Weights, cache and the most that prompts take at once; drawing comes after these."""
    settings = {**SIZES[size], "max_position_embeddings": 256, "tie_word_embeddings": True}
    changes = {"rl": {"prompts_per_step": 16, "group_size": 4}, "data": {"max_prompt_tokens": 48}}
    config = recipe(settings, {"rollout": {"max_response_tokens": 32}, **changes})
    parts = generating(config, shape_of(config), 1, DEVICES["h100"])
    assert parts.pop("sampler") > 0
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("qwen2", **settings))
    decoder = Decoder(model, habits_of(torch.device("cuda")))
    prompts = torch.randint(settings["vocab_size"], (16, 48)).tolist()
    with Live() as alive:
        weights = [getattr(layer, name) for layer in decoder.layers for name in layer.__slots__]
        for t in (decoder.embedding, *weights):
            if t is not None:
                alive.see(t.untyped_storage())
        cache = decoder.open([48] * 16, [4] * 16, 1024, 32)
        decoder.admit(cache, prompts, [4] * 16, range(64))
    assert sum(parts.values()) == pytest.approx(alive.peak, rel=0.15)


def test_zero_shares_out_what_it_says():
    config = recipe_of("Qwen/Qwen2.5-7B", train={"backend": "deepspeed", "zero": 1})
    shape = shape_of(config)
    by_stage = []
    for zero in (1, 2, 3):
        changed = config.model_copy(update={"train": config.train.model_copy(update={"zero": zero})})
        by_stage.append(memory(changed, shape, 8))
    assert by_stage[0]["optimizer"] == shape.parameters * 12 / 8
    assert by_stage[0]["gradients"] == shape.parameters * 4
    assert by_stage[1]["gradients"] == shape.parameters * 4 / 8
    assert by_stage[1]["weights"] == shape.parameters * 2
    assert by_stage[2]["weights"] == shape.parameters * 2 / 8


def test_adapters_take_what_they_learn_with_and_no_reference_while_it_is_frozen():
    rl = {"reference": {"schedule": "frozen"}}
    full = recipe_of("Qwen/Qwen3-0.6B", rl=rl, train={"backend": "deepspeed", "zero": 1})
    some = recipe_of("Qwen/Qwen3-0.6B", rl=rl, train={"backend": "deepspeed", "zero": 1, "lora": {"rank": 16}})
    shape = shape_of(full)
    adapters = 16 * 28 * ((1024 + 2048) + 2 * (1024 + 1024) + (2048 + 1024) + 3 * (1024 + 3072))
    parts = memory(some, shape, 1)
    assert parts["gradients"] == 4 * adapters
    assert parts["optimizer"] == 12 * adapters
    assert "reference" not in parts
    assert "reference" in memory(full, shape, 1)


@pytest.mark.parametrize(
    ("name", "gpus", "gpu", "named"),
    [
        ("Qwen/Qwen3-0.6B", 8, "h1000", "--gpu 'h1000' .* l4"),
        ("Qwen/Qwen3-0.6B", 0, "h100", "--gpus .* 0"),
        ("somebody/else", 8, "h100", "somebody/else"),
    ],
)
def test_what_cannot_be_planned_is_said(name, gpus, gpu, named):
    with pytest.raises(ConfigError, match=named):
        plan(recipe_of(name), gpus, gpu)


def test_every_stage_of_rl_has_a_plan_and_a_recipe_without_one_its_memory():
    two = parse(
        {
            **recipe_of("Qwen/Qwen2.5-7B").model_dump(mode="json"),
            "stages": ["rl", {"name": "long", "kind": "rl", "with": {"prompts_per_step": 99}}],
        }
    )
    found = plans(two, 8, "h100")
    assert list(found) == ["rl", "long"]
    assert found["rl"] == plan(two.of_stage("rl"), 8, "h100")
    assert found["long"].tokens == 99 / two.of_stage("rl").rl.prompts_per_step * found["rl"].tokens
    sft = merge(two.model_dump(mode="json"), {"stages": ["sft"], "sft": {"steps": 5}})
    (alone,) = plans(parse(sft), 8, "h100").values()
    assert {"weights", "gradients", "optimizer"} <= set(alone.peaks["update"])
    assert "reference" not in alone.peaks["update"]
    assert list(alone.peaks) == ["update"], "nothing is generated"
    assert alone.peaks["update"]["weights"] == found["rl"].peaks["update"]["weights"]
    assert plan_lines(alone)[-1].startswith("no RL stage")
