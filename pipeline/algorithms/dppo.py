"""DPPO: tokens stop where their probability has moved too far, not where its ratio has.

J   = mean_i (1/L) sum_t sg[M_t min(r_t, ratio_cap)] A_i log pi(y_t),  L = the recipe's longest response
M_t = 0 where pi has left pi_old by more than a threshold in the direction of A_i, else 1
A_i = R_i - mean of the group,  r_t = pi(y_t) / pi_old(y_t)
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from verizero.pipeline.algorithms.base import PolicyParams, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2602.04879"
DEPARTURES: tuple[str, ...] = (
    "the binary divergences alone; the paper has others over the most likely tokens",
    "a weight is at most ratio_cap, 20, as in verl at commit 1dda039b9c; the paper has no such bound",
    "pi_old is the trainer's at batch start where the rollouts are fresh; the paper compares to the engine's",
)
THRESHOLDS = {"tv": 0.15, "kl": 0.05}
"""The authors' own, by divergence."""


class Params(PolicyParams):
    """DPPO's numbers."""

    divergence: Literal["tv", "kl"] = option("dppo", "divergence")
    symmetric: bool = option("dppo", "symmetric")
    threshold_low: float | None = Field(
        None, gt=0, description="a token with A < 0 that fell by more than this stops; null: 0.15 for tv, 0.05 for kl"
    )
    threshold_high: float | None = Field(
        None, gt=0, description="a token with A > 0 that rose by more than this stops; null: 0.15 for tv, 0.05 for kl"
    )
    ratio_cap: float | None = option("dppo", "ratio_cap", 20.0)
    drift_coef: float = option("dppo", "drift_coef")


def parts(params: Params) -> Parts:
    """Return DPPO's parts."""
    usual = THRESHOLDS[params.divergence]
    low = usual if params.threshold_low is None else params.threshold_low
    high = usual if params.threshold_high is None else params.threshold_high
    return Parts(
        advantage=Part("group_mean"),
        ratio="token",
        surrogate=Part.of("dppo", params, threshold_low=low, threshold_high=high),
        aggregate="sequence_mean_token_sum_norm",
        **params.rest(),
    )
