"""Weights and masks on the policy loss: engine mismatch, off-policy sequences, truncated responses.

Only the overlong filter changes a denominator: it counts a truncated response as no response at all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl import ratios
from verizero.pipeline.rl.parts import Parts, PolicyParams
from verizero.pipeline.rl.ratios import LOG_RATIO_LIMIT, binary_kl, exp_clamped, k3
from verizero.pipeline.rl.reduce import divide, masked, masked_sum, sequence_mean


def training_mask(parts: Parts, response_mask: Tensor, truncated: Tensor | None) -> Tensor:
    """Return the tokens that train, [B, T] bool; none of truncated responses under the overlong filter.

    Raises: ConfigError if the filter is on and `truncated` [B] is None.
    Source: arXiv:2503.14476.
    """
    mask = response_mask > 0
    if not parts.params.overlong_filter:
        return mask
    if truncated is None:
        raise ConfigError("overlong_filter needs `truncated` [B], got None; pass the batch's")
    return mask & ~truncated.bool().unsqueeze(1)


def mismatch_weights(params: PolicyParams, old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return weights pi_old / pi_gen, [B, T] or [B, 1], no gradient: truncated to [floor, cap], or 0 outside it.

    The weight is per token, the product over the response, or that product's length-th root.

    Source: truncated, F. Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training";
    masked, arXiv:2510.18855 (IcePop).
    """
    # For a ratio, "sequence" is the mean over the response; for a mismatch, the sum.
    levels = {"token": ratios.token, "sequence": ratios.sequence_product, "geometric": ratios.sequence}
    weights = exp_clamped(levels[params.mismatch_level](old_logprobs, rollout_logprobs, mask)).detach()
    floor, cap = params.mismatch_floor, params.mismatch_cap
    if params.mismatch_action == "truncate":
        return weights.clamp(floor, cap)
    return masked(weights, (weights >= floor) & (weights <= cap))


def off_policy_keep(
    logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, mask: Tensor, delta: float
) -> Tensor:
    """Return [B, T] bool: False where A < 0 and the response's mean of log pi_gen - log pi is above delta.

    A stale good answer still trains; a stale bad answer, which the policy would hardly give any more, does not. pi_gen
    is as the engine reported it, so that staleness and mismatch count together. A response at delta is kept.

    Source: arXiv:2512.02556 section 3.1.
    """
    drift = sequence_mean(rollout_logprobs - logprobs.detach(), mask)
    # drift [B, 1] is of the response, the sign of A [B, T] of the token: some estimators give both within one response.
    return (advantages >= 0) | (drift <= delta)


def rejection_keep(
    criteria: tuple[tuple[str, float, float], ...], old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor
) -> Tensor:
    """Return [B, T] bool: False where a criterion of pi_old against pi_gen is outside its bounds.

    A criterion is `<reduction>_<estimator>`, a name of `catalog.REJECTIONS`. With x = log(pi_old / pi_gen), the
    estimators of the divergence are k1 = -x, k2 = x^2 / 2 and k3 = exp(x) - x - 1, and binary_kl that from pi_gen to
    pi_old between a token and all others; `token` judges each token, `sum`, `mean` and `max` the response. All criteria
    must pass. A value at its bound is kept.

    Source: the rejection modes of verl's rollout correction, with the same names; its bounds of k1 are ratios, ours
    are values of k1. The mean of binary_kl: FlashREINFORCE's sequence trust region.
    """
    keep = mask
    x = (old_logprobs - rollout_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    for name, low, high in criteria:
        reduction, _, estimator = name.partition("_")
        if estimator == "binary_kl":
            value = masked(binary_kl(rollout_logprobs, old_logprobs), mask)
        else:
            value = masked({"k1": -x, "k2": x**2 / 2, "k3": k3(x)}[estimator], mask)
        if reduction == "sum":
            value = masked_sum(value, mask, dim=1).unsqueeze(1)
        elif reduction == "mean":
            value = sequence_mean(value, mask)
        elif reduction == "max":  # no estimator with a maximum is negative, so 0 outside the mask is harmless
            value = value.amax(dim=1, keepdim=True)
        keep = keep & (value >= low) & (value <= high)
    return keep


def response_weight(weights: Tensor, mask: Tensor) -> Tensor:
    """Return one weight per response [B, 1], for an objective with one value per response.

    It is the geometric mean of the weights over the mask, where they are positive; 0 for an empty mask.
    """
    logs = masked(torch.where(mask, weights, torch.ones_like(weights)).log(), mask)
    mean = divide(logs.sum(dim=1), mask.sum(dim=1).to(logs.dtype)).exp().unsqueeze(1)
    return masked(mean, mask.any(dim=1, keepdim=True))
