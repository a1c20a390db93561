"""Clip-Cov: no gradient on a few tokens whose log-prob and advantage vary together most, so entropy lasts.

J     = (1 / sum_i |y_i|) sum_i sum_t m_t min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i),  A_i as in GRPO
m_t   = 0 on a random share of all tokens, drawn among those with cov_low <= cov_t <= cov_high, else 1
cov_t = (log pi(y_t) - mean of log pi) (A_i - mean of A)
"""

from __future__ import annotations

from verizero.pipeline.algorithms.base import ClipParams, GroupNormParams, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2505.22617"
DEPARTURES: tuple[str, ...] = (
    "covariances are those of the policy at batch start, so that a batch may be cut into micro-batches",
)


class Params(ClipParams, GroupNormParams):
    """Clip-Cov's numbers."""

    share: float = option("clip_cov", "share")
    cov_low: float = option("clip_cov", "cov_low")
    cov_high: float = option("clip_cov", "cov_high")


def parts(params: Params) -> Parts:
    """Return Clip-Cov's parts."""
    return Parts(
        advantage=params.advantage(),
        ratio="token",
        surrogate=Part.of("clip_cov", params),
        aggregate="token_mean",
        **params.rest(),
    )
