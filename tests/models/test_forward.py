"""Logits at chosen positions against the whole forward, with their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.models.families import FAST, SLOW, VOCAB, build, tiny
from verizero.pipeline.models.forward import logits_at, spread

GRANITE = {"logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.3}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere with a logit scale": ("cohere", {"logit_scale": 0.25}),
    "granite with scaled logits": ("granite", GRANITE),
    "phi with a bias in the head": ("phi", {}),
    "modernbert-decoder with a dense layer in the head": (
        "modernbert-decoder",
        {"num_key_value_heads": None, "classifier_pooling": "mean", "sep_token_id": 1, "cls_token_id": 2},
    ),
    "opt with a projection before the head": (
        "opt",
        {"word_embed_proj_dim": 16, "ffn_dim": 48, "num_key_value_heads": None},
    ),
}
NAMES = [*FAST, *SLOW, *OTHERS]


def model_of(name: str) -> Any:
    return build(*OTHERS[name], dtype=torch.float64) if name in OTHERS else tiny(name, dtype=torch.float64)


def batch() -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """ids [3, 9], right-padded with arbitrary tokens, and bool [3, 9] positions, some rows with none."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(2, VOCAB, (3, 9), generator=generator)
    where = torch.zeros(3, 9, dtype=torch.bool)
    where[0, [1, 4, 8]] = True
    where[1, [3, 4, 5]] = True
    return ids, where, [9, 6, 9]


def by_rows(model: Any, ids: torch.Tensor, where: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Return the same, each position by a forward over just the tokens before it."""
    out = []
    for row, n in enumerate(lengths):
        for t in where[row, :n].nonzero()[:, 0].tolist():
            out.append(model(input_ids=ids[row : row + 1, :t], use_cache=False).logits[0, -1])
    return torch.stack(out)


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_are_those_of_the_whole_forward(name: str) -> None:
    model = model_of(name)
    ids, where, lengths = batch()
    weights = torch.randn(int(where.sum()), VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    gradients = []
    logits = []
    for found in (logits_at(model, ids, where), by_rows(model, ids, where, lengths)):
        model.zero_grad()
        logits.append(found)
        torch.autograd.backward((found.log_softmax(-1) * weights).sum())
        gradients.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    assert logits[1].std() > 0.1
    # rotations and attention of transformers are float32 inside
    assert torch.allclose(logits[0], logits[1], atol=1e-6, rtol=1e-5), (logits[0] - logits[1]).abs().max()
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-4), (ours - theirs).abs().max()


def test_padding_does_not_reach_the_logits() -> None:
    model = tiny("qwen2 tied")
    ids, where, lengths = batch()
    other = ids.clone()
    other[1, lengths[1] :] = 0
    assert not torch.equal(ids, other)
    assert torch.equal(logits_at(model, ids, where), logits_at(model, other, where))


def test_a_first_token_cannot_be_predicted() -> None:
    ids, where, _ = batch()
    where[2, 0] = True
    with pytest.raises(ValueError, match="first token"):
        logits_at(tiny("llama"), ids, where)


def test_the_plain_head_is_proved_once_for_each_model() -> None:
    """The proof costs a forward: not at every micro-batch."""
    model = tiny("llama")
    calls = []
    assert isinstance(model.lm_head, nn.Module)
    model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    ids, where, _ = batch()
    logits_at(model, ids, where)
    first = len(calls)
    for _ in range(3):
        logits_at(model, ids, where)
    assert len(calls) == first + 3


def test_spread_puts_values_row_by_row_and_hands_back_their_gradient() -> None:
    _, where, _ = batch()
    values = torch.arange(1.0, 1.0 + int(where.sum()), requires_grad=True)
    out = spread(values, where)
    wanted = [[0.0] * 9 for _ in range(3)]
    rest = iter(values.tolist())
    for i, row in enumerate(where.tolist()):
        for t, chosen in enumerate(row):
            if chosen:
                wanted[i][t] = next(rest)
    assert out.tolist() == wanted
    pull = torch.arange(27.0).view(3, 9)
    torch.autograd.backward((out * pull).sum())
    assert values.grad is not None
    assert values.grad.tolist() == [pull[i, t].item() for i in range(3) for t in range(9) if where[i, t]]
