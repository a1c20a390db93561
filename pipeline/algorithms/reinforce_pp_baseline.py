"""REINFORCE++-baseline: the group's mean taken off, then whitened over the batch, k2 in the loss."""

from __future__ import annotations

from pipeline.algorithms.base import ClipHigh, ClipLow, Ddof, Eps, KlCoef, KlFormName, KlIn, PolicyParams
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2501.03262"
DEPARTURES: tuple[str, ...] = ("whitened over responses, each counting once; some implementations whiten over tokens",)


class Params(PolicyParams):
    """REINFORCE++-baseline's numbers."""

    ddof: Ddof = 0
    eps: Eps = 1e-8
    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2
    kl_in: KlIn = "loss"
    kl_form: KlFormName = "k2"
    kl_coef: KlCoef = 0.01


def parts(params: Params) -> Parts:
    """REINFORCE++-baseline's parts."""
    return Parts(
        advantage=Part("group_mean_batch_norm", {"ddof": params.ddof, "eps": params.eps}),
        ratio="token",
        surrogate=Part("clip", {"clip_low": params.clip_low, "clip_high": params.clip_high}),
        aggregate="token_mean",
        **params.rest(),
    )
