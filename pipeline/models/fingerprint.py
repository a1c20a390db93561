"""The fingerprint of a model's weights, which may be read a few at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

AT_ONCE = 1 << 17
"""Numbers that are summed at once: torch makes int64 of all that it is given."""


def fingerprint(model: Any) -> str:
    """Return a hash of the names, shapes and bits of a model's weights, which differs for another model."""
    return hashed((name, p.shape, int(sum_of_bits(p))) for name, p in model.named_parameters())


def sum_of_bits(weight: Tensor) -> Tensor:
    """Return the sum of the bits of each number, modulo 2^64, as int64. Sums of a weight's rows add up to its own."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    numbers = weight.detach().contiguous().view(-1).view(kinds[weight.element_size()])
    # In one buffer: memory of its own for each part can leave holes in the heap, as many as the weight has parts.
    wide = torch.empty(min(AT_ONCE, len(numbers)), dtype=torch.int64, device=numbers.device)
    total = torch.zeros((), dtype=torch.int64, device=numbers.device)
    for part in torch.split(numbers, AT_ONCE):
        total += wide[: len(part)].copy_(part).sum()
    return total


def hashed(sums: Iterable[tuple[str, Sequence[int], int]]) -> str:
    """Return the fingerprint of a model whose weights have these names, shapes and sums of bits."""
    words = [f"{name} {tuple(shape)} {total}" for name, shape, total in sums]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()
