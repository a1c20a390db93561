"""GMPO: the geometric mean of token ratios, each clipped in log space."""

from __future__ import annotations

from pydantic import Field

from pipeline.algorithms.base import Baseline, Ddof, Eps, PolicyParams, Std
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2507.20673"
DEPARTURES: tuple[str, ...] = ()


class Params(PolicyParams):
    """GMPO's numbers."""

    std: Std = "group"
    baseline: Baseline = "mean"
    ddof: Ddof = 1
    eps: Eps = 1e-6
    clip: float = Field(0.4, gt=0, description="token log-ratios are clipped to plus or minus this")


def parts(params: Params) -> Parts:
    """GMPO's parts."""
    return Parts(
        advantage=Part(
            "group_norm",
            {"baseline": params.baseline, "std": params.std, "ddof": params.ddof, "eps": params.eps},
        ),
        ratio="token",
        surrogate=Part("geometric_mean", {"clip": params.clip}),
        aggregate="sequence_mean",
        **params.rest(),
    )
