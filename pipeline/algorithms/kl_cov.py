"""KL-Cov: a penalty on moving the few tokens whose log-prob and advantage vary together most."""

from __future__ import annotations

from pydantic import Field

from pipeline.algorithms.base import Baseline, Ddof, Eps, PolicyParams, Std
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2505.22617"
DEPARTURES: tuple[str, ...] = (
    "covariances are those of the policy at batch start, so that a batch may be cut into micro-batches",
    "the penalty is |log pi - log pi_old|, as in the authors' code",
)


class Params(PolicyParams):
    """KL-Cov's numbers."""

    std: Std = "group"
    baseline: Baseline = "mean"
    ddof: Ddof = 1
    eps: Eps = 1e-6
    share: float = Field(2e-3, ge=0, le=1, description="share of all tokens that are held")
    cov_coef: float = Field(1.0, ge=0, description="how strongly")


def parts(params: Params) -> Parts:
    """KL-Cov's parts."""
    return Parts(
        advantage=Part(
            "group_norm",
            {"baseline": params.baseline, "std": params.std, "ddof": params.ddof, "eps": params.eps},
        ),
        ratio="token",
        surrogate=Part("kl_cov", {"share": params.share, "coef": params.cov_coef}),
        aggregate="token_mean",
        **params.rest(),
    )
