"""Weights and masks on the policy loss: engine mismatch, off-policy sequences, truncated responses.

Only the overlong filter changes a denominator: it counts a truncated response as no response at all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.rl.parts import Mismatch, Parts
from pipeline.rl.ratios import exp_clamped, log_ratio
from pipeline.rl.reduce import sequence_mean


def training_mask(parts: Parts, response_mask: Tensor, truncated: Tensor | None) -> Tensor:
    """Return the tokens that train, [B, T] bool; under the overlong filter without those of truncated responses.

    Raises: ConfigError if the filter is on and `truncated` [B] is None.
    Source: arXiv:2503.14476.
    """
    mask = response_mask > 0
    if not parts.masks.overlong_filter:
        return mask
    if truncated is None:
        raise ConfigError("masks.overlong_filter needs `truncated` [B], got None; pass the batch's")
    return mask & ~truncated.bool().unsqueeze(1)


def mismatch_weights(choice: Mismatch, old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return weights pi_old / pi_gen, [B, T] or [B, 1], no gradient: truncated to [floor, cap], or 0 outside it.

    The weight is per token, the product over the response, or that product's length-th root.

    Raises: ConfigError for an unknown level or action.
    Source: truncated, F. Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training";
    masked, arXiv:2510.18855 (IcePop).
    """
    # Level of a mismatch -> level of `log_ratio`, whose "sequence" is the mean, not the sum, over the response.
    levels = {"token": "token", "sequence": "sequence_product", "geometric": "sequence"}
    if choice.level not in levels:
        raise ConfigError(f"mismatch.level has no {choice.level!r}; known: {', '.join(levels)}")
    level = levels[choice.level]
    weights = exp_clamped(log_ratio(level, old_logprobs, rollout_logprobs, mask)).detach()  # type: ignore[arg-type]
    if choice.action == "truncate":
        return weights.clamp(choice.floor, choice.cap)
    if choice.action == "mask":
        inside = (weights >= choice.floor) & (weights <= choice.cap)
        return torch.where(inside, weights, torch.zeros_like(weights))
    raise ConfigError(f"mismatch.action has no {choice.action!r}; known: truncate, mask")


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
