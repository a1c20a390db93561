"""Doubles of the kernels: slow and obvious, in float64."""

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
