"""Every masked reduction, and what an empty mask gives: a sum of 0, a mean of 0, never a division by zero.

Masks are boolean here. Values under the mask may be anything, infinite or NaN too: they are replaced before any
arithmetic, because 0 * inf is NaN and so is the gradient through it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.rl.parts import Aggregate

AllReduce = Callable[[Tensor], Tensor]
"""The element-wise sum of a tensor over all ranks."""


def identity(x: Tensor) -> Tensor:
    """x: the sum over the one rank that there is."""
    return x


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """x where the mask holds, else 0; the gradient elsewhere is exactly 0."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def masked_sum(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum of x over the mask, over everything or along `dim`; 0 for an empty mask."""
    kept = masked(x, mask)
    return kept.sum() if dim is None else kept.sum(dim)


def divide(total: Tensor, count: Tensor | float) -> Tensor:
    """total / count, and 0 where the count is 0."""
    count = torch.as_tensor(count, dtype=total.dtype, device=total.device)
    return torch.where(count > 0, total / count.clamp(min=torch.finfo(total.dtype).tiny), torch.zeros_like(total))


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of x over the mask, over everything or along `dim`; 0 for an empty mask."""
    total = masked_sum(x, mask, dim)
    return divide(total, (mask.sum() if dim is None else mask.sum(dim)).to(total.dtype))


def sequence_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of each row over its own mask, [B, 1]."""
    return masked_mean(x, mask, dim=1).unsqueeze(1)


def aggregate(
    name: Aggregate, x: Tensor, mask: Tensor, *, tokens: float, sequences: float, norm_length: int | None
) -> Tensor:
    """This micro-batch's share of the aggregate of x [B, T] (or [B, 1]) over the whole batch.

    `tokens` and `sequences` are counted over the whole optimiser step (all micro-batches and ranks), so that the shares
    add up to the aggregate whatever the split. Rows with an empty mask count in neither.

    Raises: ConfigError if `sequence_mean_token_sum_norm` has no length, or the name is unknown.
    """
    x = x.expand(mask.shape)
    if name == "token_mean":
        return divide(masked_sum(x, mask), tokens)
    if name in ("sequence_mean_token_mean", "sequence_mean"):
        return divide(masked_mean(x, mask, dim=1).sum(), sequences)
    if name == "sequence_mean_token_sum":
        return divide(masked_sum(x, mask), sequences)
    if name == "sequence_mean_token_sum_norm":
        if norm_length is None:
            raise ConfigError("aggregate 'sequence_mean_token_sum_norm' has no norm_length; call parts.resolve first")
        return divide(masked_sum(x, mask), sequences * norm_length)
    raise ConfigError(f"aggregate has no {name!r}")


def moments(x: Tensor, mask: Tensor, ddof: int, all_reduce: AllReduce = identity) -> tuple[Tensor, Tensor, Tensor]:
    """(count, mean, standard deviation) of x over the mask and all ranks; 0 for what is undefined.

    Two passes, the second about the global mean: the textbook difference of squares loses all digits when the mean is
    large against the spread.
    """
    first = all_reduce(torch.stack([masked_sum(x, mask), mask.sum().to(x.dtype)]))
    mean = divide(first[0], first[1])
    squares = all_reduce(masked_sum((x - mean) ** 2, mask).reshape(1))[0]
    std = divide(squares, first[1] - ddof).clamp(min=0).sqrt()
    return first[1], mean, std


def whiten(x: Tensor, mask: Tensor, *, ddof: int, eps: float, all_reduce: AllReduce = identity) -> Tensor:
    """(x - mean) / (std + eps) over the mask and all ranks; 0 outside the mask, and everywhere without spread."""
    _, mean, std = moments(x, mask, ddof, all_reduce)
    # All equal: whatever is left of x - mean is rounding, and would be divided by rounding.
    flat = std <= 1e-12 * mean.abs()
    return torch.where(flat, torch.zeros_like(x), masked((x - mean) / (std + eps), mask))
