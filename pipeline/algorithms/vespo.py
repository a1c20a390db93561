"""VESPO: REINFORCE weighted by a gamma density of the whole response's ratio, which needs no clip."""

from __future__ import annotations

from pydantic import Field

from pipeline.algorithms.base import Baseline, Ddof, Eps, PolicyParams, Std
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2602.10693"
DEPARTURES: tuple[str, ...] = ()


class Params(PolicyParams):
    """VESPO's numbers."""

    std: Std = "group"
    baseline: Baseline = "mean"
    ddof: Ddof = 1
    eps: Eps = 1e-6
    k_positive: float = Field(2.0, gt=0, description="shape where A >= 0")
    lambda_positive: float = Field(3.0, gt=0, description="rate where A >= 0")
    k_negative: float = Field(3.0, gt=0, description="shape where A < 0")
    lambda_negative: float = Field(2.0, gt=0, description="rate where A < 0")


def parts(params: Params) -> Parts:
    """VESPO's parts."""
    return Parts(
        advantage=Part(
            "group_norm",
            {"baseline": params.baseline, "std": params.std, "ddof": params.ddof, "eps": params.eps},
        ),
        ratio="sequence_product",
        surrogate=Part(
            "gamma_weight",
            {
                "k_positive": params.k_positive,
                "lambda_positive": params.lambda_positive,
                "k_negative": params.k_negative,
                "lambda_negative": params.lambda_negative,
            },
        ),
        aggregate="token_mean",
        **params.rest(),
    )
