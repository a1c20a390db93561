"""Doubles of the kernels: slow and obvious, in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_probs_and_entropies(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return log softmax(hidden weight^T / temperature)[targets] [N] and entropies [N] in nats, row by row.

    hidden [N, H], weight [V, H], targets [N]; with gradient, so that autograd in float64 is the double of a backward.
    """
    picked, entropies = [torch.empty(0).double()], [torch.empty(0).double()]
    for row, target in zip(hidden, targets.tolist(), strict=True):
        logits = (weight.double() * row.double()).sum(1) / temperature
        probs = torch.exp(logits - logits.max()) / torch.exp(logits - logits.max()).sum()
        picked.append(torch.log(probs[target])[None])
        entropies.append(-(probs * torch.log(probs)).sum()[None])
    return torch.cat(picked), torch.cat(entropies)


def attention(q: Tensor, keys: Tensor, values: Tensor, starts: list[int], stops: list[int]) -> Tensor:
    """Return [B, heads, d] in float64: each row's query over its own columns start … stop - 1; 0 if it has none.

    q [B, heads, d], keys and values [B, kv heads, T, d]. Query head h reads key head h // (heads / kv heads).
    """
    out = torch.zeros(q.shape, dtype=torch.float64)
    share = q.shape[1] // keys.shape[1]
    for row, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        for head in range(q.shape[1]):
            query, own = q[row, head].double(), (keys[row, head // share].double(), values[row, head // share].double())
            weights = [math.exp(float(query @ own[0][t]) / math.sqrt(len(query))) for t in range(start, stop)]
            for t, weight in zip(range(start, stop), weights, strict=True):
                out[row, head] += weight / sum(weights) * own[1][t]
    return out
