"""The blocks with a backward of their own: hidden states and gradients are those of transformers in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.families import FAST, SLOW, VOCAB, tiny
from verizero.pipeline.models.cpu import blocks_of
from verizero.pipeline.models.cpu.blocks import Blocks
from verizero.pipeline.models.cpu.onednn import use_onednn
from verizero.pipeline.models.forward import logits_at

IDS = torch.randint(0, VOCAB, (5, 13), generator=torch.Generator().manual_seed(3))


def weighted(hidden: Tensor) -> Tensor:
    """A scalar in which each entry counts differently."""
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return (hidden * weights.to(hidden.dtype)).sum()


def gradients(model: Any) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", FAST)
def test_hidden_states_and_gradients(name: str) -> None:
    model = tiny(name)
    exact = copy.deepcopy(model).double()
    body = Blocks(model)
    ours = body.hidden_states(model, IDS)
    theirs = exact.base_model(input_ids=IDS, use_cache=False).last_hidden_state
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    weighted(ours).backward()
    weighted(theirs).backward()
    found, wanted = gradients(model), gradients(exact)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        worst = float((found[key].double() - value).abs().max())
        assert worst <= 2e-4 * float(value.abs().max()), f"{key}: {worst}"


def test_a_frozen_part_gets_no_gradient_and_the_rest_the_same() -> None:
    whole, part = tiny("qwen3 with bias"), tiny("qwen3 with bias")
    for model in (whole, part):
        body = Blocks(model)
        if model is part:
            part.model.embed_tokens.requires_grad_(False)
            part.model.layers[0].requires_grad_(False)
        weighted(body.hidden_states(model, IDS)).backward()
    found = gradients(part)
    assert not any(name.startswith(("model.layers.0.", "model.embed_tokens")) for name in found)
    assert len(found) > 10
    for name, value in found.items():
        torch.testing.assert_close(value, gradients(whole)[name])


def test_without_gradient_nothing_is_kept() -> None:
    model = tiny("qwen2 tied")
    body = Blocks(model)
    with torch.no_grad():
        assert body.hidden_states(model, IDS).grad_fn is None


def test_padding_behind_a_row_does_not_reach_it() -> None:
    model = tiny("qwen2 tied")
    body = Blocks(model)
    longer = torch.cat([IDS, torch.zeros(5, 300, dtype=torch.int64)], 1)
    torch.testing.assert_close(body.hidden_states(model, longer)[:, :13], body.hidden_states(model, IDS))


@pytest.mark.parametrize("name", SLOW)
def test_others_are_left_to_transformers(name: str) -> None:
    assert blocks_of(tiny(name)) is None


def test_logits_take_it_for_plain_models_only(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    plain = Blocks.hidden_states
    monkeypatch.setattr(Blocks, "hidden_states", lambda *a: calls.append(1) or plain(*a))
    where = torch.zeros(IDS.shape, dtype=torch.bool)
    where[:, 4:] = True
    model = tiny("qwen2 tied")
    use_onednn(model)
    fast = logits_at(model, IDS, where)
    assert len(calls) == 2, "its proof and itself"
    hook = model.model.layers[0].register_forward_hook(lambda *_: None)
    assert blocks_of(model) is None
    slow = logits_at(model, IDS, where)
    hook.remove()
    assert len(calls) == 2
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4)
    model.model.layers[1].mlp.down_proj = Wrapped(model.model.layers[1].mlp.down_proj)
    assert blocks_of(model) is None
    assert blocks_of(tiny("qwen2 tied", dtype=torch.bfloat16)) is None


class Wrapped(nn.Linear):
    """What an adapter looks like."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__(inner.in_features, inner.out_features, bias=False)


def test_a_model_that_computes_something_else_is_found_out() -> None:
    model = tiny("llama")
    model.model.layers[0].self_attn.scaling *= 2  # no setting says so
    where = torch.zeros(IDS.shape, dtype=torch.bool)
    where[:, -1] = True
    wanted = model(input_ids=IDS[:, :-1], use_cache=False).logits[:, -1]
    torch.testing.assert_close(logits_at(model, IDS, where), wanted)
