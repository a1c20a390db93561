"""CISPO: the importance weight is clipped and held, so that every token keeps its gradient."""

from __future__ import annotations

from pydantic import Field

from pipeline.algorithms.base import Baseline, ClipHigh, Ddof, Eps, PolicyParams, Std
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2506.13585 eq. 4 and 5"
DEPARTURES: tuple[str, ...] = ("clip_high 4 is an absolute cap of 5, as in 2510.13786; the paper tunes it per run",)


class Params(PolicyParams):
    """CISPO's numbers."""

    std: Std = "group"
    baseline: Baseline = "mean"
    ddof: Ddof = 1
    eps: Eps = 1e-6
    clip_low: float | None = Field(None, gt=0, le=1, description="weights stay above 1 - clip_low; null: no bound")
    clip_high: ClipHigh = 4.0


def parts(params: Params) -> Parts:
    """CISPO's parts."""
    return Parts(
        advantage=Part(
            "group_norm",
            {"baseline": params.baseline, "std": params.std, "ddof": params.ddof, "eps": params.eps},
        ),
        ratio="token",
        surrogate=Part("cispo", {"clip_low": params.clip_low, "clip_high": params.clip_high}),
        aggregate="token_mean",
        **params.rest(),
    )
