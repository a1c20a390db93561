"""Logarithms of importance ratios pi / pi_old, each of which has an entry in `ratio_entries.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.parts import Proximal
from verizero.pipeline.rl.reduce import masked_sum, sequence_mean

LOG_RATIO_LIMIT = 20.0
"""|log ratio| beyond this is clamped before exp: e^20 = 4.9e8, and e^89 is no longer a float32. Clamps are counted."""


def token(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return log pi - log pi_old of each token [B, T]. Inputs [B, T] are 0 outside the mask, here and below."""
    return logprobs - old_logprobs


def sequence(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return the mean difference over the response [B, 1]. Source: arXiv:2507.18071 eq. 7."""
    return sequence_mean(logprobs - old_logprobs, mask)


def sequence_token(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return [B, T] with the value of `sequence` and the gradient of each token's own log-prob.

    Source: arXiv:2507.18071 eq. 14.
    """
    # The last two terms cancel in value and leave each token its own gradient.
    return sequence_mean(logprobs - old_logprobs, mask).detach() + logprobs - logprobs.detach()


def sequence_product(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of the differences over the response [B, 1]."""
    return masked_sum(logprobs - old_logprobs, mask, dim=1).unsqueeze(1)


def none(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return zeros [B, T]: the ratio is 1, and has no gradient."""
    return torch.zeros_like(logprobs)


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
