"""Adapters: the policy begins as its base, learns while its base is frozen, and is one plain model once merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.models.families import build, tiny
from verizero.pipeline.errors import CheckpointError, ConfigError
from verizero.pipeline.models.fingerprint import fingerprint
from verizero.pipeline.models.lora import Adapted, trained_by_saved_name

IDS = torch.tensor([[3, 4, 5, 6, 7, 8]])


def adapted(name: str = "qwen2 tied", targets: tuple[str, ...] = (), dtype: torch.dtype = torch.float64) -> Adapted:
    return Adapted(tiny(name, dtype=dtype), 3, 6.0, targets, 5, "shares")


@torch.no_grad()
def taught(a: Adapted) -> Adapted:
    """As if it had learned something."""
    generator = torch.Generator().manual_seed(1)
    for p in trained_by_saved_name(a.model).values():
        p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    return a


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


@pytest.mark.parametrize("name", ["qwen2 tied", "llama with bias", "gpt2"])
def test_merged_it_computes_what_the_adapters_do(name: str) -> None:
    plain = logits(tiny(name, dtype=torch.float64))
    a = adapted(name)
    assert torch.equal(logits(a.model), plain)
    assert torch.equal(logits(a.twin), plain)
    assert a.is_fresh()
    taught(a)
    assert not a.is_fresh()
    moved = logits(a.model)
    assert (moved - plain).abs().max() > 0.1
    assert torch.allclose(logits(a.merge()), moved, atol=1e-6)
    with a.without():
        assert torch.equal(logits(a.model), plain)
    assert torch.equal(logits(a.base_copy()), plain)
    assert torch.equal(logits(a.model), moved)


def test_only_adapters_learn_and_unchanged_weights_are_held_once() -> None:
    a = adapted(targets=("q_proj", "down_proj"))
    names = [n for n, p in a.model.named_parameters() if p.requires_grad]
    assert len(names) == 2 * 2 * 2
    assert all("q_proj.lora_" in n or "down_proj.lora_" in n for n in names)
    held = {id(p) for p in a.model.parameters()}
    own = [n for n, p in a.twin.named_parameters() if id(p) not in held]
    assert sorted({n.split(".")[-2] for n in own}) == ["down_proj", "q_proj"]
    assert a.twin.lm_head.weight is a.model.model.embed_tokens.weight


def test_the_same_seed_draws_the_same_adapters_and_leaves_the_global_one_alone() -> None:
    models = [tiny("llama"), tiny("llama")]
    before = torch.get_rng_state()
    one, other = (Adapted(model, 3, 6.0, (), 5) for model in models)
    assert torch.equal(torch.get_rng_state(), before)
    ours, theirs = (trained_by_saved_name(a.model) for a in (one, other))
    assert any(bool(p.any()) for p in ours.values())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(p, theirs[name]) for name, p in ours.items())


def test_half_precision_policies_have_float32_adapters() -> None:
    a = adapted(dtype=torch.bfloat16)
    assert {p.dtype for p in a.model.parameters() if p.requires_grad} == {torch.float32}
    assert logits(taught(a).model).dtype == torch.bfloat16
    assert {p.dtype for p in a.merge().parameters()} == {torch.bfloat16}


def test_saved_adapters_come_back_and_load_with_peft(tmp_path: Path) -> None:
    a = taught(adapted("llama", dtype=torch.float32))
    a.save(tmp_path, True)
    again = adapted("llama", dtype=torch.float32)
    again.load(tmp_path)
    assert torch.equal(logits(again.model), logits(a.model))
    import peft  # half a second

    theirs = peft.PeftModel.from_pretrained(tiny("llama"), tmp_path / "adapter")
    assert torch.allclose(logits(theirs), logits(a.model), atol=1e-6)
    a.merge().save_pretrained(tmp_path / "model")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.equal(logits(plain), logits(a.twin))


def test_adapters_of_another_base_are_refused(tmp_path: Path) -> None:
    adapted().save(tmp_path, True)
    other = Adapted(tiny("qwen2 tied", seed=1, dtype=torch.float64), 3, 6.0, (), 5)
    with pytest.raises(CheckpointError, match="they are of another base than the recipe's model"):
        other.load(tmp_path)
    wider = Adapted(tiny("qwen2 tied", dtype=torch.float64), 4, 6.0, (), 5)
    with pytest.raises(CheckpointError, match="do not fit the policy"):
        wider.load(tmp_path)
    assert fingerprint(tiny("llama")) == fingerprint(tiny("llama")) != fingerprint(tiny("llama", seed=1))


def test_layers_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.lora\.targets=\['nowhere'\]"):
        adapted(targets=("nowhere",))


def test_our_own_blocks_do_not_compute_a_model_with_adapters() -> None:
    """They read weights, and would miss the adapters."""
    from verizero.pipeline.models.forward import logprobs_at

    model = build("qwen2", {"tie_word_embeddings": True})
    a = Adapted(model, 2, 4.0, (), 0)
    where = torch.ones(IDS.shape, dtype=torch.bool)
    where[:, 0] = False
    logprobs_at(model, IDS, where, 1.0)
    taught(a)
    found, _ = logprobs_at(model, IDS, where, 1.0)
    wanted = logits(model).log_softmax(-1)[0, :-1].gather(1, IDS[0, 1:, None])[:, 0]
    assert torch.allclose(found[0, 1:], wanted, atol=1e-5)
