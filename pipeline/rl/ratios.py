"""Importance ratios pi / pi_old at token and sequence level, as logarithms."""

from __future__ import annotations

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.parts import Proximal, RatioLevel
from verizero.pipeline.rl.reduce import masked_sum, sequence_mean

LOG_RATIO_LIMIT = 20.0
"""|log ratio| beyond this is clamped before exp: e^20 = 4.9e8, and e^89 is no longer a float32. Clamps are counted."""


def log_ratio(level: RatioLevel, logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return the log of the importance ratio: [B, T] at token level, [B, 1] at sequence level, 0 for "none".

    Inputs are 0 outside the mask. `sequence` is the mean over the response, `sequence_product` the sum,
    `sequence_token` has the value of `sequence` and the gradient of each token's own log-prob.

    Raises: ConfigError for an unknown level.
    Source: arXiv:2507.18071 eq. 7 (sequence) and 14 (sequence_token).
    """
    difference = logprobs - old_logprobs
    if level == "token":
        return difference
    if level == "sequence":
        return sequence_mean(difference, mask)  # [B, 1]
    if level == "sequence_token":
        # The last two terms cancel in value and leave each token its own gradient.
        return sequence_mean(difference, mask).detach() + logprobs - logprobs.detach()
    if level == "sequence_product":
        return masked_sum(difference, mask, dim=1).unsqueeze(1)
    if level == "none":
        return torch.zeros_like(difference)  # ratio 1, no gradient through it
    raise ConfigError(f"ratio has no {level!r}")


def exp_clamped(x: Tensor) -> Tensor:
    """Return exp(x) with x clamped to +-LOG_RATIO_LIMIT; there is no gradient beyond."""
    return x.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def proximal(method: Proximal, sampled: Tensor, current: Tensor, share: Tensor) -> Tensor:
    """Return log-probs [B, T] that approximate the policy at batch start, without a forward of its own.

    It lies on the way from the policy that sampled a row to the current one: `share` [B], or [B, T] by token, of the
    updates in between were taken at batch start. `loglinear` interpolates log-probs, `linear` probabilities; share 1 is
    the current policy.

    Raises: ConfigError for a method without an approximation.
    Source: AReaL's `compute_prox_logp_approximations`; its share counts whole versions, ours minibatches too.
    """
    share = (share if share.dim() == 2 else share.unsqueeze(1)).to(current.dtype)
    if method == "loglinear":
        return torch.lerp(sampled.to(current.dtype), current, share)
    if method == "linear":
        return torch.logaddexp((1 - share).log() + sampled, share.log() + current)
    raise ConfigError(f"mismatch.prox has no approximation {method!r}; known: loglinear, linear")
