"""Logits and log-probs at chosen positions against the whole forward, with their gradients, in chunks too."""

import itertools
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.models.families import FAST, SLOW, VOCAB, build, tiny
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.models.comparison import compare_at, readout
from verizero.pipeline.models.forward import Layout, Replay, _chunk_size, logits_at, logprobs_at, spread
from verizero.pipeline.rl.distillation import ServedLogprobs, compare, distribution
from verizero.pipeline.rl.divergences import Objective

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
def test_logits_and_gradients_are_those_of_the_whole_forward(name):
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


def test_a_first_token_cannot_be_predicted():
    ids, where, _ = batch()
    where[2, 0] = True
    with pytest.raises(ValueError, match="first token"):
        logits_at(tiny("llama"), ids, where)


def test_spread_puts_values_row_by_row_and_hands_back_their_gradient():
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
    assert values.grad.tolist() == [pull[i, t].item() for i in range(3) for t in range(9) if where[i, t]]


def found(model: Any, chunk_tokens: int | None, temperature: float, kept: torch.Tensor | None) -> list[torch.Tensor]:
    """Log-probs, entropies and all gradients of a loss that pulls on both."""
    ids, where, _ = batch()
    model.zero_grad()
    layout = Layout(chunk_tokens=chunk_tokens)
    logprobs, entropy = logprobs_at(model, ids, where, temperature, True, replay=Replay(kept), layout=layout)
    pull = torch.arange(1.0, 1.0 + ids.numel()).view(ids.shape)
    torch.autograd.backward((logprobs * pull - 0.3 * pull.flip(0) * entropy).sum())
    return [logprobs.detach(), entropy.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", ["qwen2 tied", "llama", "qwen3 with bias", "phi with a bias in the head"])
@pytest.mark.parametrize("chunk_tokens", [1, 4, 100])
def test_chunks_are_the_whole(name, chunk_tokens, kept):
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
    """Notes the most rows of a matrix with `size` columns; with axis 0 the most columns of one with `size` rows."""

    def __init__(self, size, axis=1):
        super().__init__()
        self.size, self.axis, self.most = size, axis, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.dim() == 2 and leaf.shape[self.axis] == self.size:
                self.most = max(self.most, leaf.shape[1 - self.axis])
        return out


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_more_logits_exist_at_once_than_asked_for(tied, dtype):
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
            assert logprobs.dtype == entropy.dtype == torch.float32
            torch.autograd.backward((logprobs + entropy).sum())
        seen[chunk_tokens] = largest.most
    assert seen == {None: 4 * 59, 48: 48}


def test_a_head_that_is_more_than_a_product_is_refused():
    ids, where, _ = batch()
    with pytest.raises(ConfigError, match=r"train\.logits_chunk_tokens=4: model type 'gemma2' .* set it to null"):
        logprobs_at(tiny("gemma2 with softcapping"), ids, where, 1.0, layout=Layout(chunk_tokens=4))


def test_auto_means_chunks_on_a_gpu_where_the_head_is_a_product():
    auto, gpu, cpu = Layout(chunk_tokens="auto"), torch.device("cuda"), torch.device("cpu")
    assert _chunk_size(tiny("llama"), auto, gpu) == 1024
    assert _chunk_size(tiny("llama"), auto, cpu) is _chunk_size(tiny("gemma2 with softcapping"), auto, gpu) is None
    assert _chunk_size(tiny("llama"), Layout(chunk_tokens=7), cpu) == 7


OBJECTIVES = [
    Objective("forward_kl", temperature=0.8),
    Objective("forward_kl", "top_k", top_k=4),
    Objective(over="sampled"),
]
TEACHERS = ["llama", "gemma2 with softcapping"]


def gradients(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@pytest.mark.parametrize("name", ["qwen2 tied", "qwen3 with bias", "gemma2 with softcapping"])
def test_policy_and_teacher_compared_in_chunks_are_what_their_whole_logits_give(objective, name):
    model, ids, where = tiny(name, dtype=torch.float64), *batch()[:2]
    pull = torch.arange(1.0, 1.0 + int(where.sum()), dtype=torch.float64)
    for other in TEACHERS:
        teacher = tiny(other, seed=3, dtype=torch.float64)
        with torch.no_grad():
            theirs = logits_at(teacher, ids, where)
            said = readout(teacher, ids, where)
            told = _told(theirs, ids[where], objective)
        assert (said.weight is None) == (other == "gemma2 with softcapping")
        wanted = compare(logits_at(model, ids, where), ids[where], theirs, objective)
        slopes = gradients(model, (wanted.divergence * pull + 0.3 * wanted.logprobs).sum())
        whats = (said, readout(teacher, ids, where, whole=True), *told)
        for what, chunk_tokens in itertools.product(whats, (1, 4, None)):
            found = compare_at(model, ids, where, what, objective, chunk_tokens)
            for mine, whole in zip(found, wanted, strict=True):
                torch.testing.assert_close(mine, whole, rtol=1e-9, atol=1e-12)
            for mine, whole in zip(
                gradients(model, (found.divergence * pull + 0.3 * found.logprobs).sum()), slopes, strict=True
            ):
                torch.testing.assert_close(mine, whole, rtol=1e-9, atol=1e-12)
        assert all(p.grad is None for p in teacher.parameters())


def _told(logits: torch.Tensor, targets: torch.Tensor, objective: Objective) -> list[ServedLogprobs]:
    """What a server would say, for the objectives that one can serve."""
    if objective.over == "vocabulary":
        return []
    log_q = distribution(logits, objective.temperature)
    ids = targets[:, None] if objective.over == "sampled" else log_q.topk(objective.top_k, dim=1).indices
    return [ServedLogprobs(ids, log_q.gather(1, ids))]


def test_never_more_logits_of_either_model_at_once_than_asked_for():
    vocab = 1009
    model, teacher = (build("qwen2", {"vocab_size": vocab, "tie_word_embeddings": tied}, 3) for tied in (True, False))
    ids = torch.randint(2, vocab, (4, 60), generator=torch.Generator().manual_seed(0))
    where = torch.ones(ids.shape, dtype=torch.bool)
    where[:, 0] = False
    for proved in (model, teacher):  # the proof of a head is a forward with more rows
        readout(proved, ids[:1, :4], where[:1, :4])
    seen = {}
    for chunk_tokens in (4 * 59, 48):
        with Largest(vocab) as largest:
            with torch.no_grad():
                said = readout(teacher, ids, where)
            compare_at(model, ids, where, said, Objective("forward_kl"), chunk_tokens).divergence.sum().backward()
        seen[chunk_tokens] = largest.most
    assert seen == {4 * 59: 4 * 59, 48: 48}
