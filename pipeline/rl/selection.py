"""Select tokens over the whole batch, once at batch start, so that the result does not depend on micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import DataError
from verizero.pipeline.rl.catalog import load
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.rl.reduce import AllReduce, masked, moments, single_rank_sum

Gather = Callable[[Tensor], Tensor]
"""Function that returns the concatenation of the 1-D tensors of all ranks, of any lengths."""


def single_rank_gather(x: Tensor) -> Tensor:
    """Return x: the concatenation over ranks where there is a single one, or where every rank has the whole batch."""
    return x


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected tokens, [B, T] bool, None if the parts need none; they go into `LossInputs` by the same names."""

    high_entropy: Tensor | None = None
    selected: Tensor | None = None
    low_moment: Tensor | None = None


def select_tokens(
    parts: Parts,
    *,
    advantages: Tensor,
    old_logprobs: Tensor,
    response_mask: Tensor,
    old_entropy: Tensor | None = None,
    generator: torch.Generator | None = None,
    gather: Gather = single_rank_gather,
    all_reduce: AllReduce = single_rank_sum,
) -> Selection:
    """Return the tokens that the parts' masks and surrogate select over the whole batch of all ranks.

    Raises: DataError if the entropy mask is asked for without `old_entropy`.
    """
    mask = response_mask > 0
    high_entropy = selected = None
    if parts.masks.high_entropy_share is not None:
        if old_entropy is None:
            raise DataError("high_entropy_share needs old_entropy [B, T], got None; see logprobs.logprobs_and_entropy")
        high_entropy = top_share(old_entropy, mask, parts.masks.high_entropy_share, gather)
    entry = parts.surrogate_entry
    if entry is not None and entry.selects is not None:
        cov = covariance(old_logprobs, advantages, mask, all_reduce)
        selected = load(entry.selects)(cov, mask, generator, gather, **parts.surrogate.options)
    return Selection(high_entropy, selected)


def low_moment(
    old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, limit: float, gather: Gather = single_rank_gather
) -> Tensor:
    """Return as many tokens as possible, [B, T] bool, whose mean (log pi_old - log pi_gen)^2 is below `limit`.

    They are those with the smallest squares. Tokens with equal squares are selected together or not at all, so that
    neither order nor ranks decide. None is selected if the smallest square is not below the limit.

    Source: arXiv:2510.01161 (M2PO).
    """
    squares = masked(old_logprobs - rollout_logprobs, mask).double() ** 2
    ordered = gather(squares[mask]).sort().values
    # Running means of ascending numbers never fall, so those below the limit come first.
    num = int((ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, device=ordered.device) < limit).sum())
    if num == 0:
        return torch.zeros_like(mask)
    highest = ordered[num - 1]
    cuts_equals = num < len(ordered) and bool(ordered[num] == highest)
    return mask & (squares < highest if cuts_equals else squares <= highest)


def top_by_covariance(
    cov: Tensor, mask: Tensor, generator: torch.Generator | None, gather: Gather, *, share: float, **_: Any
) -> Tensor:
    """Return the `share` of all tokens of highest covariance, [B, T] bool. Source: arXiv:2505.22617, KL-Cov."""
    return top_share(cov, mask, share, gather)


def random_by_covariance(
    cov: Tensor, mask: Tensor, generator: torch.Generator | None, gather: Gather, **options: Any
) -> Tensor:
    """Return a random `share` of all tokens, drawn among those with `cov_low` <= covariance <= `cov_high`, [B, T] bool.

    Source: arXiv:2505.22617, Clip-Cov.
    """
    eligible = mask & (cov >= options["cov_low"]) & (cov <= options["cov_high"])
    return random_share(eligible, mask, options["share"], generator, gather)


def top_share(x: Tensor, mask: Tensor, share: float, gather: Gather = single_rank_gather) -> Tensor:
    """Return the ceil(share * N) largest of the N values of x under the mask of all ranks, with all ties, [B, T] bool.

    Source: arXiv:2506.01939 for entropies, arXiv:2505.22617 for covariances.
    """
    all_values = gather(x[mask])
    num = math.ceil(share * all_values.numel())
    if num == 0:
        return torch.zeros_like(mask)
    # The num-th largest is the (N - num + 1)-th smallest. With `>=` all ties are in, alike on all ranks.
    threshold = all_values.kthvalue(all_values.numel() - num + 1).values
    return mask & (masked(x, mask) >= threshold)


def random_share(
    eligible: Tensor, mask: Tensor, share: float, generator: torch.Generator | None, gather: Gather = single_rank_gather
) -> Tensor:
    """Return floor(share * N) tokens drawn from the eligible ones, [B, T] bool, N counted under the mask of all ranks.

    A share above 0 draws 1 token at least. If fewer are eligible, all of them are returned. Each rank needs a generator
    of its own stream.

    Source: arXiv:2505.22617; the least of 1 as in the authors' code.
    """
    num = math.floor(share * gather(mask[mask]).numel())  # `mask[mask]` has one entry per trained token
    if share > 0:
        num = max(1, num)  # else a batch of few tokens would never draw any
    # Drawn for every token of [B, T] on the CPU, so that the device and the number eligible do not change the draw.
    keys = torch.rand(mask.shape, dtype=torch.float64, generator=generator).to(mask.device)
    all_keys = gather(keys[eligible])
    # No return before both gathers: all ranks must take part in each.
    if num == 0 or all_keys.numel() == 0:
        return torch.zeros_like(mask)
    if num >= all_keys.numel():
        return eligible
    # The num smallest of independent uniform keys are a draw without replacement.
    return eligible & (keys <= all_keys.kthvalue(num).values)


def covariance(logprobs: Tensor, advantages: Tensor, mask: Tensor, all_reduce: AllReduce = single_rank_sum) -> Tensor:
    """Return (log pi - mean)(A - mean) per token, [B, T] in float64, means over all ranks; 0 outside the mask.

    Source: arXiv:2505.22617.
    """
    logprobs, advantages = masked(logprobs, mask).double(), masked(advantages, mask).double()
    _, mean_logprob, _ = moments(logprobs, mask, 0, all_reduce)
    _, mean_advantage, _ = moments(advantages, mask, 0, all_reduce)
    return masked((logprobs - mean_logprob) * (advantages - mean_advantage), mask)
