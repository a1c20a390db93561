"""DAPO: clip-higher, loss per token of the batch, dynamic sampling, soft overlong penalty, no KL."""

from __future__ import annotations

from pipeline.algorithms.base import Baseline, Buffer, ClipHigh, ClipLow, Ddof, Dynamic, Eps, PolicyParams, Std
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2503.14476 eq. 8 to 13"
DEPARTURES: tuple[str, ...] = ("the overlong buffer is a share of the longest response (0.2, as 4096 of 20480)",)


class Params(PolicyParams):
    """DAPO's numbers."""

    std: Std = "group"
    baseline: Baseline = "mean"
    ddof: Ddof = 1
    eps: Eps = 1e-6
    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.28
    dynamic_sampling: Dynamic = True
    overlong_buffer: Buffer = 0.2


def parts(params: Params) -> Parts:
    """DAPO's parts."""
    return Parts(
        advantage=Part(
            "group_norm",
            {"baseline": params.baseline, "std": params.std, "ddof": params.ddof, "eps": params.eps},
        ),
        ratio="token",
        surrogate=Part("clip", {"clip_low": params.clip_low, "clip_high": params.clip_high}),
        aggregate="token_mean",
        **params.rest(),
    )
