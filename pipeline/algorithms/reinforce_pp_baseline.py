"""REINFORCE++-baseline: the group's mean taken off, then whitened over all tokens, k2 in the loss.

J   = (1 / sum_i |y_i|) sum_i sum_t [ min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i) - kl_coef d^2 / 2 ]
A_i = whiten over all tokens( R_i - mean of the group ),  d = log pi_ref(y_t) - log pi(y_t),  r_t as in PPO
"""

from __future__ import annotations

from typing import Literal

from verizero.pipeline.algorithms.base import ClipParams, KlCoef, KlFormName, KlIn, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2501.03262"
DEPARTURES: tuple[str, ...] = ("the population's deviation plus eps; implementations differ in both",)


class Params(ClipParams):
    """REINFORCE++-baseline's numbers."""

    over: Literal["tokens", "responses"] = option("group_mean_batch_norm", "over")
    ddof: int = option("group_mean_batch_norm", "ddof", 0)
    eps: float = option("group_mean_batch_norm", "eps", 1e-8)
    kl_in: KlIn = "loss"
    kl_form: KlFormName = "k2"
    kl_coef: KlCoef = 0.01


def parts(params: Params) -> Parts:
    """Return REINFORCE++-baseline's parts."""
    return Parts(
        advantage=Part.of("group_mean_batch_norm", params),
        ratio="token",
        surrogate=params.clip(),
        aggregate="token_mean",
        **params.rest(),
    )
