"""GSPO: one length-normalised ratio per response, with a clip of its own size."""

from __future__ import annotations

from pipeline.algorithms.base import Baseline, ClipHigh, ClipLow, Ddof, Eps, PolicyParams, Std
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2507.18071 eq. 5 to 7"
DEPARTURES: tuple[str, ...] = ()


class Params(PolicyParams):
    """GSPO's numbers."""

    std: Std = "group"
    baseline: Baseline = "mean"
    ddof: Ddof = 1
    eps: Eps = 1e-6
    clip_low: ClipLow = 3e-4
    clip_high: ClipHigh = 4e-4


def parts(params: Params) -> Parts:
    """GSPO's parts."""
    return Parts(
        advantage=Part(
            "group_norm",
            {"baseline": params.baseline, "std": params.std, "ddof": params.ddof, "eps": params.eps},
        ),
        ratio="sequence",
        surrogate=Part("clip", {"clip_low": params.clip_low, "clip_high": params.clip_high}),
        aggregate="sequence_mean_token_mean",
        **params.rest(),
    )
