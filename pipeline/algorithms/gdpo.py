"""GDPO: each reward component normalised within its group before they are summed, then whitened over the batch."""

from __future__ import annotations

from pydantic import Field

from pipeline.algorithms.base import ClipHigh, ClipLow, Ddof, Eps, PolicyParams
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2601.05242"
DEPARTURES: tuple[str, ...] = ()


class Params(PolicyParams):
    """GDPO's numbers."""

    weights: tuple[float, ...] | None = Field(None, description="one for each reward component; null: all 1")
    ddof: Ddof = 1
    eps: Eps = 1e-6
    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2


def parts(params: Params) -> Parts:
    """GDPO's parts."""
    return Parts(
        advantage=Part("normalize_then_sum", {"weights": params.weights, "ddof": params.ddof, "eps": params.eps}),
        ratio="token",
        surrogate=Part("clip", {"clip_low": params.clip_low, "clip_high": params.clip_high}),
        aggregate="sequence_mean_token_mean",
        **params.rest(),
    )
