"""Log-probs in chunks are those of the whole logits, gradients too; never more logits at once than asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.models.families import VOCAB, build, tiny
from tests.models.test_forward import batch
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.models.forward import Layout, Replay, _chunk_size, logprobs_at

PLAIN = ["qwen2 tied", "llama", "qwen3 with bias"]


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


@pytest.mark.parametrize("name", [*PLAIN, "phi"])
@pytest.mark.parametrize("chunk_tokens", [1, 4, 100])
def test_chunks_are_the_whole(name: str, chunk_tokens: int) -> None:
    model = build("phi", {}, dtype=torch.float64) if name == "phi" else tiny(name, dtype=torch.float64)
    for one, other in zip(found(model, chunk_tokens, 0.7, None), found(model, None, 0.7, None), strict=True):
        assert torch.allclose(one, other, atol=1e-12, rtol=1e-9), (one - other).abs().max()


@pytest.mark.parametrize("name", PLAIN)
def test_chunks_are_the_whole_in_float32_with_kept_sets(name: str) -> None:
    model = tiny(name)
    ids, where, _ = batch()
    targets = ids[where]
    kept = torch.stack([targets, (targets + 1) % VOCAB, torch.full_like(targets, -1)], 1)
    kept[2] = -1
    for one, other in zip(found(model, 2, 1.3, kept), found(model, None, 1.3, kept), strict=True):
        assert float((one - other).abs().max()) <= 2e-6 * max(1.0, float(other.abs().max()))
    with pytest.raises(DataError, match="is not in the set recorded for it"):
        logprobs_at(model, ids, where, 1.0, replay=Replay((kept + 3) % VOCAB), layout=Layout(chunk_tokens=2))


def test_frozen_output_embeddings_get_no_gradient() -> None:
    model = tiny("llama")
    model.lm_head.requires_grad_(False)
    found(model, 2, 1.0, None)
    assert model.lm_head.weight.grad is None


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
