"""Logits and log-probs at chosen positions against the whole forward, with their gradients, in chunks too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.models.families import FAST, SLOW, VOCAB, build, tiny
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.models.forward import Layout, Replay, _chunk_size, logits_at, logprobs_at, spread

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


def found(model: Any, chunk_tokens: int | None, temperature: float, kept: torch.Tensor | None) -> list[torch.Tensor]:
    """Log-probs, entropies and all gradients of a loss that pulls on both."""
    ids, where, _ = batch()
    model.zero_grad()
    layout = Layout(chunk_tokens=chunk_tokens)
    logprobs, entropy = logprobs_at(model, ids, where, temperature, True, replay=Replay(kept), layout=layout)
    assert entropy is not None
    pull = torch.arange(1.0, 1.0 + ids.numel()).view(ids.shape)
    torch.autograd.backward((logprobs * pull - 0.3 * pull.flip(0) * entropy).sum())
    return [logprobs.detach(), entropy.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", ["qwen2 tied", "llama", "qwen3 with bias", "phi with a bias in the head"])
@pytest.mark.parametrize("chunk_tokens", [1, 4, 100])
def test_chunks_are_the_whole(name: str, chunk_tokens: int, kept: bool) -> None:
    model = model_of(name)
    ids, where, _ = batch()
    targets = ids[where]
    sets = torch.stack([targets, (targets + 1) % VOCAB, torch.full_like(targets, -1)], 1)
    sets[2] = -1
    both = [found(model, tokens, 0.7, sets if kept else None) for tokens in (chunk_tokens, None)]
    for one, other in zip(*both, strict=True):
        assert torch.allclose(one, other, atol=1e-12, rtol=1e-9), (one - other).abs().max()
    with pytest.raises(DataError, match="is not in the set recorded for it"):
        logprobs_at(model, ids, where, 1.0, replay=Replay((sets + 3) % VOCAB), layout=Layout(chunk_tokens=chunk_tokens))


class Largest(TorchDispatchMode):
    """Most rows of a tensor with as many columns as there are tokens."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.vocab, self.rows = vocab, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.dim() == 2 and leaf.shape[1] == self.vocab:
                self.rows = max(self.rows, leaf.shape[0])
        return out


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_more_logits_exist_at_once_than_asked_for(tied: bool, dtype: torch.dtype) -> None:
    """Of all tensors that forward and backward make, those of one column a token have at most `chunk_tokens` rows."""
    vocab = 1009
    model = build("qwen2", {"vocab_size": vocab, "tie_word_embeddings": tied}, dtype=dtype)
    ids = torch.randint(2, vocab, (4, 60), generator=torch.Generator().manual_seed(0))
    where = torch.ones(ids.shape, dtype=torch.bool)
    where[:, 0] = False
    logprobs_at(
        model, ids[:1, :4], where[:1, :4], 1.0, layout=Layout(chunk_tokens=7)
    )  # the proof of its head is a forward
    seen = {}
    for chunk_tokens in (None, 48):
        with Largest(vocab) as largest:
            logprobs, entropy = logprobs_at(model, ids, where, 1.0, True, layout=Layout(chunk_tokens=chunk_tokens))
            assert entropy is not None
            assert logprobs.dtype == entropy.dtype == torch.float32
            torch.autograd.backward((logprobs + entropy).sum())
        seen[chunk_tokens] = largest.rows
    assert seen == {None: 4 * 59, 48: 48}


def test_a_head_that_is_more_than_a_product_is_refused() -> None:
    ids, where, _ = batch()
    with pytest.raises(ConfigError, match=r"train\.logits_chunk_tokens=4: model type 'gemma2' .* set it to null"):
        logprobs_at(tiny("gemma2 with softcapping"), ids, where, 1.0, layout=Layout(chunk_tokens=4))


def test_auto_means_chunks_on_a_gpu_where_the_head_is_a_product() -> None:
    auto, gpu, cpu = Layout(chunk_tokens="auto"), torch.device("cuda"), torch.device("cpu")
    assert _chunk_size(tiny("llama"), auto, gpu) == 1024
    assert _chunk_size(tiny("llama"), auto, cpu) is _chunk_size(tiny("gemma2 with softcapping"), auto, gpu) is None
    assert _chunk_size(tiny("llama"), Layout(chunk_tokens=7), cpu) == 7
