"""Surrogates: the objective of each token, to be maximised, before masks, weights and aggregation.

Each has its whole per-token formula in one function: `SurrogateInputs` and its numbers in, [B, T] out, or [B, 1] if a
response has one value. A callable with the same signature can take the place of a name in `Parts.surrogate`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.rl.ratios import LOG_RATIO_LIMIT, binary_kl, exp_clamped
from verizero.pipeline.rl.reduce import masked, masked_mean


@dataclass(frozen=True, slots=True)
class SurrogateInputs:
    """Inputs of a surrogate. All [B, T] values are 0 outside the mask."""

    logprobs: Tensor
    """[B, T], with gradient."""
    log_ratio: Tensor
    """Log-ratio by token [B, T] or by response [B, 1], as `Parts.ratio` says; with gradient."""
    advantages: Tensor
    """[B, T], no gradient."""
    mask: Tensor
    """[B, T] bool."""
    selected: Tensor | None = None
    """[B, T] bool: tokens selected once per batch, for surrogates whose catalog entry `selects`."""

    @property
    def response_advantages(self) -> Tensor:
        """[B, 1]: the advantage of each response, which is constant over its tokens."""
        # In the type of the log-probs: a float32 mean of equal numbers is not always that number.
        return masked_mean(self.advantages.to(self.logprobs.dtype), self.mask, dim=1).unsqueeze(1)


def clip(x: SurrogateInputs, *, clip_low: float, clip_high: float) -> Tensor:
    """Return min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), [B, T].

    Source: arXiv:1707.06347 eq. 7; unequal sides arXiv:2503.14476 eq. 10.
    """
    ratio = exp_clamped(x.log_ratio)
    clipped_ratio = ratio.clamp(1 - clip_low, 1 + clip_high)
    # The worse of the two: the clip limits a gain, never a loss.
    return torch.minimum(ratio * x.advantages, clipped_ratio * x.advantages)


def dual_clip(x: SurrogateInputs, *, clip_low: float, clip_high: float, dual: float) -> Tensor:
    """Return max(min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), dual A) where A < 0, else without the max, [B, T].

    Source: arXiv:1912.09729.
    """
    objective = clip(x, clip_low=clip_low, clip_high=clip_high)
    return torch.where(x.advantages < 0, torch.maximum(objective, dual * x.advantages), objective)


def two_sided(x: SurrogateInputs, *, clip_low: float, clip_high: float, delta: float) -> Tensor:
    """Return min(min(r, delta) A, clip(r, 1 - clip_low, 1 + clip_high) A), [B, T]: for A < 0 r counts as delta at most.

    Source: arXiv:2505.07291.
    """
    ratio = exp_clamped(x.log_ratio)
    clipped_ratio = ratio.clamp(1 - clip_low, 1 + clip_high)
    # For A > 0 the clip is tighter: the rules require delta > 1 + clip_high.
    return torch.minimum(ratio.clamp(max=delta) * x.advantages, clipped_ratio * x.advantages)


def cispo(x: SurrogateInputs, *, clip_low: float | None, clip_high: float) -> Tensor:
    """Return sg[clip(r, 1 - clip_low, 1 + clip_high)] A log pi, [B, T]: no token's gradient is dropped.

    `clip_low` None leaves small ratios unclipped.

    Source: arXiv:2506.13585 eq. 4 and 5.
    """
    # The gradient is that of log pi, so a token whose weight is clipped still learns.
    ratio = exp_clamped(x.log_ratio.detach())
    weight = ratio.clamp(min=0.0 if clip_low is None else 1 - clip_low, max=1 + clip_high)
    return weight * x.advantages * x.logprobs


def geometric_mean(x: SurrogateInputs, *, clip: float) -> Tensor:
    """Return A exp(mean_t s min(s log r_t, clip(s log r_t, -clip, clip))) with s = sign A, [B, 1].

    Source: arXiv:2507.20673: the geometric mean of token ratios, each clipped in log space.
    """
    # Multiplied by the sign of A, the smaller one is the worse one for both signs; the second factor undoes it.
    sign = _either(x.advantages < 0, -1.0, 1.0, x.log_ratio)
    signed = sign * x.log_ratio
    bounded = sign * torch.minimum(signed, signed.clamp(-clip, clip))
    return exp_clamped(masked_mean(bounded, x.mask, dim=1).unsqueeze(1)) * x.response_advantages


def soft_gate(x: SurrogateInputs, *, tau_positive: float, tau_negative: float) -> Tensor:
    """Return (4 / tau) sigmoid(tau (r - 1)) A, [B, T]: its slope in r is A at r = 1 and falls smoothly on both sides.

    tau is `tau_positive` where A > 0, else `tau_negative`.

    Source: arXiv:2511.20347.
    """
    tau = _either(x.advantages > 0, tau_positive, tau_negative, x.log_ratio)
    # The sigmoid's slope at r = 1 is tau / 4, which the factor takes to 1.
    return 4 / tau * torch.sigmoid(tau * (exp_clamped(x.log_ratio) - 1)) * x.advantages


def squared(x: SurrogateInputs, *, tau: float) -> Tensor:
    """Return -(A - tau log(pi(y) / pi_old(y)))^2 over whole responses, [B, 1]. A is R - mean of the group.

    Source: arXiv:2501.12599 eq. 3, arXiv:2507.20534 section 3.2.3.
    """
    return -((x.response_advantages - tau * x.log_ratio) ** 2)


def gamma_weight(
    x: SurrogateInputs, *, k_positive: float, lambda_positive: float, k_negative: float, lambda_negative: float
) -> Tensor:
    """Return sg[phi(w)] A log pi, [B, T], phi(w) = exp(l + k log w - l w), w = pi(y) / pi_old(y) of the response.

    phi(1) = 1. (k, l) are the positive numbers where A >= 0, else the negative. log w is clamped to [log 1e-8, 20].

    Source: arXiv:2602.10693 (VESPO).
    """
    log_w = x.log_ratio.detach().clamp(math.log(1e-8), LOG_RATIO_LIMIT)  # [B, 1]: one weight for the response
    k = _either(x.advantages >= 0, k_positive, k_negative, log_w)
    slope = _either(x.advantages >= 0, lambda_positive, lambda_negative, log_w)
    return (slope + k * log_w - slope * log_w.exp()).exp() * x.advantages * x.logprobs


def clip_cov(
    x: SurrogateInputs, *, clip_low: float, clip_high: float, share: float, cov_low: float, cov_high: float
) -> Tensor:
    """Return min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), and 0 on the selected tokens of high covariance, [B, T].

    Source: arXiv:2505.22617. `share`, `cov_low` and `cov_high` are used by `selection.random_by_covariance`.
    """
    objective = clip(x, clip_low=clip_low, clip_high=clip_high)
    return objective if x.selected is None else masked(objective, ~x.selected)


def kl_cov(x: SurrogateInputs, *, share: float, coef: float) -> Tensor:
    """Return r A, and r A - coef |log r| on the selected tokens, which have the highest covariance, [B, T].

    Source: arXiv:2505.22617. `share` is used by `selection.top_by_covariance`.
    """
    objective = exp_clamped(x.log_ratio) * x.advantages
    return objective if x.selected is None else torch.where(x.selected, objective - coef * x.log_ratio.abs(), objective)


def dppo(
    x: SurrogateInputs,
    *,
    divergence: str,
    symmetric: bool,
    threshold_low: float,
    threshold_high: float,
    ratio_cap: float | None,
    drift_coef: float,
) -> Tensor:
    """Return sg[M min(r, ratio_cap)] A log pi - drift_coef (log r)^2, [B, T], M = 0 on tokens of `beyond_divergence`.

    `ratio_cap` None: no bound. The second term pulls every token back to pi_old, those with M = 0 too.

    Source: arXiv:2602.04879 (binary divergences; the ratio's bound, section 5.4); arXiv:2602.02276 (the squared
    log-ratio).
    """
    is_beyond = beyond_divergence(x, divergence, symmetric, threshold_low, threshold_high)
    # Detached: the gradient is that of log pi, with this weight.
    weight = masked(exp_clamped(x.log_ratio.detach()), ~is_beyond)
    if ratio_cap is not None:
        weight = weight.clamp(max=ratio_cap)
    return weight * x.advantages * x.logprobs - drift_coef * x.log_ratio**2


def beyond_divergence(
    x: SurrogateInputs, divergence: str, symmetric: bool, threshold_low: float, threshold_high: float, **_: Any
) -> Tensor:
    """Return [B, T] bool: True where pi is further from pi_old than a threshold, in the direction that A pushes.

    The threshold is `threshold_high` where A > 0 and pi > pi_old, `threshold_low` where A < 0 and pi < pi_old; if
    `symmetric`, whatever A is. The distance is binary, between the token and all others: |pi - pi_old| (tv), or
    pi_old log(pi_old / pi) + (1 - pi_old) log((1 - pi_old) / (1 - pi)) (kl).

    Source: arXiv:2602.04879; symmetric, prime-rl's IPO loss.
    """
    logprobs = x.logprobs.detach()
    old_logprobs = logprobs - x.log_ratio.detach()
    change = logprobs.exp() - old_logprobs.exp()
    distance = change.abs() if divergence == "tv" else binary_kl(old_logprobs, logprobs)
    rising, falling = (change > 0) & (distance > threshold_high), (change < 0) & (distance > threshold_low)
    if symmetric:
        return (rising | falling) & x.mask
    return (rising & (x.advantages > 0)) | (falling & (x.advantages < 0))


def reinforce(x: SurrogateInputs) -> Tensor:
    """Return A log pi, [B, T]."""
    return x.advantages * x.logprobs


def _either(condition: Tensor, yes: float, no: float, like: Tensor) -> Tensor:
    """Return `yes` where the condition is true, else `no`, in the type of `like`."""
    # torch.where would round bare numbers to float32.
    return torch.where(condition, like.new_tensor(yes), like.new_tensor(no))
