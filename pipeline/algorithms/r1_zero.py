"""R1-Zero: GRPO with a weak KL to a reference that moves every round."""

from __future__ import annotations

from pipeline.algorithms.base import (
    Baseline,
    ClipHigh,
    ClipLow,
    Ddof,
    Eps,
    KlCoef,
    KlFormName,
    KlIn,
    PolicyParams,
    ReferenceName,
    Std,
)
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2501.12948; 2402.03300"
DEPARTURES: tuple[str, ...] = (
    "the reference moves once a round; the paper replaces it every 400 steps",
    "the clip is GRPO's 0.2",
)


class Params(PolicyParams):
    """R1-Zero's numbers."""

    std: Std = "group"
    baseline: Baseline = "mean"
    ddof: Ddof = 1
    eps: Eps = 1e-6
    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2
    kl_in: KlIn = "loss"
    kl_form: KlFormName = "k3"
    kl_coef: KlCoef = 0.001
    reference: ReferenceName = "every_round"


def parts(params: Params) -> Parts:
    """R1-Zero's parts."""
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
