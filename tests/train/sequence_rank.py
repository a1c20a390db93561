"""One rank of two that hold each sequence together; prints how far they end from one rank alone.

Run by `test_sequence_parallel.py` as `python -m tests.train.sequence_rank`; the place is in RANK and WORLD_SIZE.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import torch

from tests.models.families import VOCAB, build
from tests.train.batches import two_layers
from tests.train.zero_parts import apart, begun, critic_weights, ppo
from tests.train.zero_rank import NUM_STEPS, distance, steps, weights
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.forward import Layout, Replay, logprobs_at
from verizero.pipeline.models.routing import recording
from verizero.pipeline.train.ranks import Ranks, join, leave, sharing_sequences
from verizero.pipeline.train.torch_backend import TorchBackend

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "one key head": ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "two key heads": ("qwen3", {"num_key_value_heads": 2, "head_dim": 8}),
    "all key heads": ("llama", {"num_key_value_heads": 4}),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "experts": (
        "qwen3_moe",
        {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
}


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [3, 10], so that nine are predicted, and where: of one row only the first piece, of one only the last."""
    ids = torch.randint(2, VOCAB, (3, 10), generator=torch.Generator().manual_seed(0))
    where = torch.zeros(ids.shape, dtype=torch.bool)
    where[0, 2:4] = where[1, 8:] = where[2, 1:] = True
    return ids, where


def loss_and_gradient(model: Any, ranks: Ranks, replay: Replay, chunk_tokens: int | None) -> list[torch.Tensor]:
    """Log-probs, entropies and the gradients of a loss that pulls on both, summed over ranks."""
    ids, where = batch()
    model.zero_grad()
    layout = Layout(chunk_tokens=chunk_tokens, pieces=ranks.pieces)
    logprobs, entropy = logprobs_at(model, ids, where, 0.7, True, replay=replay, layout=layout)
    assert entropy is not None
    pull = torch.arange(1.0, 1.0 + ids.numel()).view(ids.shape)
    torch.autograd.backward((logprobs * pull - 0.3 * pull.flip(0) * entropy).sum())
    for p in model.parameters():  # an expert that only another rank's tokens chose has none here
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    if ranks.pieces is not None:
        ranks.sum_gradients(model.parameters())
    return [logprobs.detach(), entropy.detach(), *(p.grad for p in model.parameters())]


def family(name: str, ranks: Ranks, kept: torch.Tensor | None = None, reroutes: bool = False) -> float:
    """Greatest difference of two ranks from one, relative to the largest number of its kind."""
    model = build(*FAMILIES[name])
    routing = None
    if reroutes:
        with recording(model) as choices:
            model(input_ids=batch()[0], use_cache=False)
            routing = (choices.take(3) + 1) % 4
    replay, chunk_tokens = Replay(kept, routing), None if kept is None else 2
    wanted = loss_and_gradient(copy.deepcopy(model), Ranks(), replay, chunk_tokens)
    assert ranks.pieces is not None
    ranks.pieces.enable(model)
    ranks.pieces.prove(model)
    found = loss_and_gradient(model, ranks, replay, chunk_tokens)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in zip(found, wanted, strict=True))


def refused(ranks: Ranks, model_type: str, changes: dict[str, Any]) -> str:
    """Return the message about a model whose sequences cannot be divided."""
    model = build(model_type, changes)
    assert ranks.pieces is not None
    try:
        ranks.pieces.enable(model)
        ranks.pieces.prove(model)
    except ConfigError as exc:
        return str(exc)
    return ""


def shared_out(ranks: Ranks, changes: dict[str, Any]) -> TorchBackend:
    model = two_layers()
    assert ranks.pieces is not None
    ranks.pieces.enable(model)
    return TorchBackend(model, ranks, TrainConfig(**changes))


def trained(ranks: Ranks) -> dict[str, Any]:
    """Some steps of GRPO with a reference, and of PPO with either critic."""
    found: dict[str, Any] = {}
    alone = begun(TorchBackend(two_layers()))
    metrics = steps(alone, 0, NUM_STEPS)
    for changes in ({}, {"gradient_checkpointing": True}):
        backend = begun(shared_out(ranks, changes))
        seen = steps(backend, 0, NUM_STEPS)
        found[f"grpo {changes}"] = max(apart(seen, metrics), distance(weights(backend), weights(alone)))
    for shared in (False, True):
        alone = begun(TorchBackend(two_layers()), shared)
        metrics = ppo(alone, 0, NUM_STEPS)
        backend = begun(shared_out(ranks, {}), shared)
        seen = ppo(backend, 0, NUM_STEPS)
        gap = distance(critic_weights(backend), critic_weights(alone))
        found[f"ppo {shared}"] = max(apart(seen, metrics), distance(weights(backend), weights(alone)), gap)
    return found


def main() -> dict[str, Any]:
    torch.set_num_threads(1)
    ranks = sharing_sequences(join(120), 2)
    found: dict[str, Any] = {name: family(name, ranks) for name in FAMILIES}
    targets = batch()[0][batch()[1]]
    kept = torch.stack([targets, (targets + 1) % VOCAB, torch.full_like(targets, -1)], 1)
    found["kept sets in chunks"] = family("one key head", ranks, kept)
    found["replayed experts"] = family("experts", ranks, reroutes=True)
    found |= trained(ranks)
    window = {"sliding_window": 4, "num_key_value_heads": 4}
    return {
        "apart": found,
        "window": refused(ranks, "mistral", window),
        "heads": refused(ranks, "llama", {"num_attention_heads": 3, "hidden_size": 48, "num_key_value_heads": 3}),
    }


if __name__ == "__main__":
    answer = main()
    leave()
    print("found", json.dumps(answer))
