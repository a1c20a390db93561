"""Select tokens over the whole batch, once at batch start, so that the result does not depend on micro-batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import DataError
from verizero.pipeline.rl.catalog import load
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.rl.reduce import masked, moments


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected tokens, [B, T] bool, None if the parts need none; they go into `LossInputs` by the same names."""

    high_entropy: Tensor | None = None
    selected: Tensor | None = None


def select_tokens(
    parts: Parts,
    *,
    advantages: Tensor,
    old_logprobs: Tensor,
    response_mask: Tensor,
    old_entropy: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Selection:
    """Return the tokens that masks and surrogate select in the batch. Raises: DataError without `old_entropy`."""
    mask = response_mask > 0
    high_entropy = selected = None
    if parts.params.high_entropy_share is not None:
        if old_entropy is None:
            raise DataError("high_entropy_share needs old_entropy [B, T], got None; see logprobs.logprobs_and_entropy")
        high_entropy = top_share(old_entropy, mask, parts.params.high_entropy_share)
    entry = parts.surrogate_entry
    if entry is not None and entry.selects is not None:
        cov = covariance(old_logprobs, advantages, mask)
        selected = load(entry.selects)(cov, mask, generator, **parts.surrogate.options)
    return Selection(high_entropy, selected)


def top_by_covariance(
    cov: Tensor, mask: Tensor, generator: torch.Generator | None, *, share: float, **_: Any
) -> Tensor:
    """Return the `share` of all tokens of highest covariance, [B, T] bool. Source: arXiv:2505.22617, KL-Cov."""
    return top_share(cov, mask, share)


def random_by_covariance(cov: Tensor, mask: Tensor, generator: torch.Generator | None, **options: Any) -> Tensor:
    """Return a random `share` of all tokens, drawn among those with `cov_low` <= covariance <= `cov_high`, [B, T] bool.

    Source: arXiv:2505.22617, Clip-Cov.
    """
    eligible = mask & (cov >= options["cov_low"]) & (cov <= options["cov_high"])
    return random_share(eligible, mask, options["share"], generator)


def top_share(x: Tensor, mask: Tensor, share: float) -> Tensor:
    """Return the ceil(share * N) largest of the N values of x under the mask, with all ties, [B, T] bool.

    Source: arXiv:2506.01939 for entropies, arXiv:2505.22617 for covariances.
    """
    values = x[mask]
    num = math.ceil(share * values.numel())
    if num == 0:
        return torch.zeros_like(mask)
    # The num-th largest is the (N - num + 1)-th smallest. With `>=` all ties are in.
    threshold = values.kthvalue(values.numel() - num + 1).values
    return mask & (masked(x, mask) >= threshold)


def random_share(eligible: Tensor, mask: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Return floor(share * N) tokens drawn from the eligible ones, [B, T] bool, N counted under the mask.

    A share above 0 draws 1 token at least. If fewer are eligible, all of them are returned.

    Source: arXiv:2505.22617; the least of 1 as in the authors' code.
    """
    num = math.floor(share * int(mask.sum()))
    if share > 0:
        num = max(1, num)  # else a batch of few tokens would never draw any
    # Drawn for every token of [B, T] on the CPU, so that the device and the number eligible do not change the draw.
    keys = torch.rand(mask.shape, dtype=torch.float64, generator=generator).to(mask.device)
    own = keys[eligible]
    if num == 0 or own.numel() == 0:
        return torch.zeros_like(mask)
    if num >= own.numel():
        return eligible
    # The num smallest of independent uniform keys are a draw without replacement.
    return eligible & (keys <= own.kthvalue(num).values)


def covariance(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Return (log pi - mean)(A - mean) per token, [B, T] in float64; 0 outside the mask. Source: arXiv:2505.22617."""
    logprobs, advantages = masked(logprobs, mask).double(), masked(advantages, mask).double()
    _, mean_logprob, _ = moments(logprobs, mask, 0)
    _, mean_advantage, _ = moments(advantages, mask, 0)
    return masked((logprobs - mean_logprob) * (advantages - mean_advantage), mask)
