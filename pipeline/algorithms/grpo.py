"""GRPO: rewards normalised within each group, clipped token ratios, k3 to a reference in the loss."""

from __future__ import annotations

from pipeline.algorithms.base import Baseline, ClipHigh, ClipLow, Ddof, Eps, KlCoef, KlFormName, KlIn, PolicyParams, Std
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2402.03300 eq. 3 and 4"
DEPARTURES: tuple[str, ...] = ("the standard deviation is the sample's (ddof 1); the paper leaves it open",)


class Params(PolicyParams):
    """GRPO's numbers."""

    std: Std = "group"
    baseline: Baseline = "mean"
    ddof: Ddof = 1
    eps: Eps = 1e-6
    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2
    kl_in: KlIn = "loss"
    kl_form: KlFormName = "k3"
    kl_coef: KlCoef = 0.04


def parts(params: Params) -> Parts:
    """GRPO's parts."""
    return Parts(
        advantage=Part(
            "group_norm",
            {"baseline": params.baseline, "std": params.std, "ddof": params.ddof, "eps": params.eps},
        ),
        ratio="token",
        surrogate=Part("clip", {"clip_low": params.clip_low, "clip_high": params.clip_high}),
        aggregate="sequence_mean_token_mean",
        **params.rest(),
    )
