"""Logarithms of importance ratios pi / pi_old, each of which has an entry in `catalog.py`, and estimates of the KL.

The KL is that of pi to pi_ref, per token, for tokens sampled from pi.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.parts import KlForm
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
    """Return [B, T] with the value of `sequence` and the gradient of each token. Source: arXiv:2507.18071 eq. 14."""
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


def estimate_kl(
    form: KlForm,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    old_logprobs: Tensor | None = None,
    cap: float | None = None,
    log_ratio: Tensor | None = None,
) -> Tensor:
    """Return a per-token estimate of KL(pi || pi_ref), [B, T], with d = log pi_ref - log pi.

    k1 = -d (unbiased, may be negative); k2 = d^2 / 2; k3 = exp(d) - d - 1 >= 0, d clamped to +-20 so that exp stays
    finite; k3_unbiased = (pi / pi_old) k3, the gradient through both, which makes the gradient that of the KL when
    tokens were sampled from pi_old; k3_ratio = r k3 with the surrogate's own ratio r, `log_ratio` [B, T] or [B, 1],
    which differs from k3_unbiased where r is of the whole response. k1_plus and k3_plus have the value of k1 and k3 and
    the gradient of k2, which is that of the KL when tokens were sampled from pi. An estimate above `cap` is the cap,
    without gradient.

    Raises: ConfigError for an unknown form, k3_unbiased without `old_logprobs`, or k3_ratio without `log_ratio`.
    Source: http://joschu.net/blog/kl-approx.html; arXiv:2402.03300 eq. 4; arXiv:2512.02556 section 3.1; k3_ratio is
    TRL's. The cap is none of theirs: implementations have 10.
    """
    if form == "k3_ratio":
        if log_ratio is None:
            raise ConfigError("kl_form 'k3_ratio' needs log_ratio, got None")
        value = exp_clamped(log_ratio) * k3(ref_logprobs - logprobs)
    else:
        value = _estimate_kl(form, logprobs, ref_logprobs, old_logprobs)
    return value if cap is None else value.clamp(max=cap)


def k3(d: Tensor) -> Tensor:
    """Return exp(d) - d - 1 >= 0, with d clamped so that exp stays finite."""
    clamped = d.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    # expm1 keeps the digits that exp(d) - 1 loses near d = 0, where nearly all tokens are.
    return clamped.expm1() - clamped


def _estimate_kl(form: KlForm, logprobs: Tensor, ref_logprobs: Tensor, old_logprobs: Tensor | None) -> Tensor:
    d = ref_logprobs - logprobs
    if form == "k1":
        return -d
    if form == "k2":
        return d**2 / 2
    if form == "k3":
        return k3(d)
    if form == "k3_unbiased":
        if old_logprobs is None:
            raise ConfigError("kl_form 'k3_unbiased' needs old_logprobs, got None")
        # The weight is not detached: its gradient is the part that k3 alone lacks.
        return exp_clamped(logprobs - old_logprobs) * k3(d)
    if form in ("k1_plus", "k3_plus"):
        value = -d if form == "k1_plus" else k3(d)
        k2 = d**2 / 2
        # The difference is exactly 0 in value and leaves the gradient of k2.
        return value.detach() + (k2 - k2.detach())
    raise ConfigError(f"kl_form has no {form!r}")


def binary_kl(old_logprobs: Tensor, logprobs: Tensor) -> Tensor:
    """Return the KL from pi_old to pi of the choice between a token and all others, [B, T].

    pi_old log(pi_old / pi) + (1 - pi_old) log((1 - pi_old) / (1 - pi)). Source: arXiv:2602.04879.
    """
    # 1 - p, where rounding may leave nothing: 1e-8 as in the authors' code.
    old_rest, rest = (-torch.expm1(lp).clamp(max=-1e-8) for lp in (old_logprobs, logprobs))
    kl: Tensor = old_logprobs.exp() * (old_logprobs - logprobs) + old_rest * (old_rest / rest).log()
    return kl
