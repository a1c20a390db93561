"""Masked reductions. An empty mask gives a sum of 0 and a mean of 0, never a division by zero.

Masks are boolean here. Values outside the mask may be anything, infinite or NaN too: they are replaced before any
arithmetic, because 0 * inf is NaN and so is the gradient through it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.parts import Aggregate


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """Return x where the mask is true, else 0; the gradient elsewhere is exactly 0."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def masked_sum(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Return the sum of x over the mask, over everything or along `dim`; 0 for an empty mask."""
    masked_x = masked(x, mask)
    return masked_x.sum() if dim is None else masked_x.sum(dim)


def divide(total: Tensor, count: Tensor | float) -> Tensor:
    """Return total / count, and 0 where the count is 0."""
    if not isinstance(count, Tensor):  # not made a tensor: the host would wait for the copy to the device
        return total / count if count > 0 else masked(total, torch.zeros_like(total, dtype=torch.bool))
    count = count.to(total.dtype)
    # The clamp keeps the branch that `where` drops finite: its gradient would be 0 * inf = NaN.
    return torch.where(count > 0, total / count.clamp(min=torch.finfo(total.dtype).tiny), torch.zeros_like(total))


def masked_mean(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Return the mean of x over the mask along `dim`; 0 for an empty mask."""
    total = masked_sum(x, mask, dim)
    return divide(total, mask.sum(dim).to(total.dtype))


def sequence_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of each row over its own mask, [B, 1]."""
    return masked_mean(x, mask, dim=1).unsqueeze(1)


def aggregate(
    name: Aggregate,
    x: Tensor,
    mask: Tensor,
    *,
    tokens: float,
    sequences: float,
    norm_length: int | None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Return this micro-batch's share of the aggregate of x [B, T] (or [B, 1]) over the whole optimiser step.

    `tokens` and `sequences` are counted over the whole optimiser step (all micro-batches and ranks), so that the shares
    add up to the aggregate whatever the split. Rows with an empty mask count in neither. `lengths` [B]: trained tokens
    of the whole episode that a row belongs to, over which a sequence's mean is; None where every row is an episode.

    Raises: ConfigError if `sequence_mean_token_sum_norm` has no length, or the name is unknown.
    """
    # A value per response [B, 1] is repeated at each of its tokens: its mean over them is the value itself.
    x = x.expand(mask.shape)
    if name == "token_mean":
        return divide(masked_sum(x, mask), tokens)
    # Empty rows add 0 here, and are not among `sequences`.
    if name in ("sequence_mean_token_mean", "sequence_mean"):
        if lengths is not None:
            return divide(divide(masked_sum(x, mask, dim=1), lengths).sum(), sequences)
        return divide(masked_mean(x, mask, dim=1).sum(), sequences)
    if name == "sequence_mean_token_sum":
        return divide(masked_sum(x, mask), sequences)
    if name == "sequence_mean_token_sum_norm":
        if norm_length is None:
            raise ConfigError("aggregate 'sequence_mean_token_sum_norm' has no norm_length; call parts.resolve first")
        return divide(masked_sum(x, mask), sequences * norm_length)
    raise ConfigError(f"aggregate has no {name!r}")


def moments(x: Tensor, mask: Tensor, ddof: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (count, mean, standard deviation) of x over the mask; 0 where one is undefined."""
    # Two passes, the second about the mean: the textbook difference of squares loses all digits when the mean is much
    # larger than the spread.
    count = mask.sum().to(x.dtype)
    mean = divide(masked_sum(x, mask), count)
    std = divide(masked_sum((x - mean) ** 2, mask), count - ddof).clamp(min=0).sqrt()
    return count, mean, std


def whiten(x: Tensor, mask: Tensor, ddof: int, eps: float) -> Tensor:
    """Return (x - mean) / (std + eps) over the mask; 0 outside the mask, or if x is constant."""
    _, mean, std = moments(x, mask, ddof)
    # If all are equal, x - mean and the std are both rounding errors, and their ratio would be noise of size 1.
    is_constant = std <= 1e-12 * mean.abs()
    return torch.where(is_constant, torch.zeros_like(x), masked((x - mean) / (std + eps), mask))
