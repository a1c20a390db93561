"""KL-Cov: a penalty on moving the few tokens whose log-prob and advantage vary together most.

J     = (1 / sum_i |y_i|) sum_i sum_t [ r_t A_i - cov_coef k_t |log r_t| ],  A_i and r_t as in GRPO
k_t   = 1 on the share of all tokens of highest cov_t, else 0
cov_t = (log pi(y_t) - mean of log pi) (A_i - mean of A)
"""

from __future__ import annotations

from verizero.pipeline.algorithms.base import GroupNormParams, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2505.22617"
DEPARTURES: tuple[str, ...] = (
    "covariances are those of the policy at batch start, so that a batch may be cut into micro-batches",
    "the penalty is |log pi - log pi_old|, as in the authors' code",
)


class Params(GroupNormParams):
    """KL-Cov's numbers."""

    share: float = option("kl_cov", "share")
    cov_coef: float = option("kl_cov", "coef")


def parts(params: Params) -> Parts:
    """Return KL-Cov's parts."""
    return Parts(
        advantage=params.advantage(),
        ratio="token",
        surrogate=Part.of("kl_cov", params, coef=params.cov_coef),
        aggregate="token_mean",
        **params.rest(),
    )
