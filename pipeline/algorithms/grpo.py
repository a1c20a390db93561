"""GRPO: rewards normalised within each group, clipped token ratios, k3 to a reference in the loss.

J   = mean_i (1/|y_i|) sum_t [ min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i) - kl_coef k3_t ]
A_i = (R_i - mean of the group) / (std of the group + eps)
r_t = pi(y_t) / pi_old(y_t),  k3_t = exp(d) - d - 1,  d = log pi_ref(y_t) - log pi(y_t)
"""

from __future__ import annotations

from verizero.pipeline.algorithms.base import ClipParams, GroupNormParams, KlCoef, KlFormName, KlIn
from verizero.pipeline.rl.parts import Parts

SOURCE = "arXiv:2402.03300 eq. 3 and 4"
DEPARTURES: tuple[str, ...] = ("the standard deviation is the sample's (ddof 1); the paper leaves it open",)


class Params(ClipParams, GroupNormParams):
    """GRPO's numbers."""

    kl_in: KlIn = "loss"
    kl_form: KlFormName = "k3"
    kl_coef: KlCoef = 0.04


def parts(params: Params) -> Parts:
    """Return GRPO's parts."""
    return Parts(
        advantage=params.advantage(),
        ratio="token",
        surrogate=params.clip(),
        aggregate="sequence_mean_token_mean",
        **params.rest(),
    )
