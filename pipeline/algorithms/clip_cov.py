"""Clip-Cov: no gradient on a few tokens whose log-prob and advantage vary together most, so entropy lasts."""

from __future__ import annotations

from pydantic import Field

from pipeline.algorithms.base import Baseline, ClipHigh, ClipLow, Ddof, Eps, PolicyParams, Std
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2505.22617"
DEPARTURES: tuple[str, ...] = (
    "covariances are those of the policy at batch start, so that a batch may be cut into micro-batches",
)


class Params(PolicyParams):
    """Clip-Cov's numbers."""

    std: Std = "group"
    baseline: Baseline = "mean"
    ddof: Ddof = 1
    eps: Eps = 1e-6
    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2
    share: float = Field(2e-4, ge=0, le=1, description="share of all tokens that are left out")
    cov_low: float = Field(1.0, description="they are drawn among those with a covariance from here")
    cov_high: float = Field(5.0, description="to here")


def parts(params: Params) -> Parts:
    """Clip-Cov's parts."""
    return Parts(
        advantage=Part(
            "group_norm",
            {"baseline": params.baseline, "std": params.std, "ddof": params.ddof, "eps": params.eps},
        ),
        ratio="token",
        surrogate=Part(
            "clip_cov",
            {
                "clip_low": params.clip_low,
                "clip_high": params.clip_high,
                "share": params.share,
                "cov_low": params.cov_low,
                "cov_high": params.cov_high,
            },
        ),
        aggregate="token_mean",
        **params.rest(),
    )
