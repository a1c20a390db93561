"""Policy and teacher compared in chunks are what their whole logits give, gradients too; few logits exist at once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.models.families import build, tiny
from tests.models.test_forward import Largest, batch
from verizero.pipeline.models.comparison import compare_at, readout
from verizero.pipeline.models.forward import logits_at
from verizero.pipeline.rl.distillation import ServedLogprobs, compare, distribution
from verizero.pipeline.rl.divergences import Objective

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
def test_chunks_are_the_whole(objective: Objective, name: str) -> None:
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


def test_never_more_logits_of_either_model_at_once_than_asked_for() -> None:
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
        seen[chunk_tokens] = largest.rows
    assert seen == {4 * 59: 4 * 59, 48: 48}
