"""SAPO: a smooth gate on the ratio in place of a clip, steeper for negative advantages."""

from __future__ import annotations

from pydantic import Field

from pipeline.algorithms.base import Baseline, Ddof, Eps, PolicyParams, Std
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2511.20347"
DEPARTURES: tuple[str, ...] = ()


class Params(PolicyParams):
    """SAPO's numbers."""

    std: Std = "group"
    baseline: Baseline = "mean"
    ddof: Ddof = 1
    eps: Eps = 1e-6
    tau_positive: float = Field(1.0, gt=0, description="steepness of the gate where A > 0")
    tau_negative: float = Field(1.05, gt=0, description="steepness elsewhere")


def parts(params: Params) -> Parts:
    """SAPO's parts."""
    return Parts(
        advantage=Part(
            "group_norm",
            {"baseline": params.baseline, "std": params.std, "ddof": params.ddof, "eps": params.eps},
        ),
        ratio="token",
        surrogate=Part("soft_gate", {"tau_positive": params.tau_positive, "tau_negative": params.tau_negative}),
        aggregate="sequence_mean_token_mean",
        **params.rest(),
    )
