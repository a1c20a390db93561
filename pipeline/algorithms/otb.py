"""OTB: a baseline for each token, weighted by how far each response has moved the gradient by then.

J   = mean_i sum_t A_t log pi(y_t)
A_t = R_i - sum_j W_jt R_j / sum_j W_jt over the group's other responses that have a token t
W_t = sum_(s <= t) (1 - 2 pi(y_s) + sum of the squared probabilities of all words at s)
"""

from __future__ import annotations

from typing import Literal

from verizero.pipeline.algorithms import reinforce
from verizero.pipeline.algorithms.base import PolicyParams, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2602.07078"
DEPARTURES: tuple[str, ...] = (
    "the baseline is over the others, which leaves the expected gradient as it is; verl's (baseline: mean) is over all",
    "a token that no other response reaches has the mean of the others' rewards as baseline; verl has 0",
)


class Params(PolicyParams):
    """OTB's numbers."""

    baseline: Literal["leave_one_out", "mean"] = option("optimal_token_baseline", "baseline")


def parts(params: Params) -> Parts:
    """Return REINFORCE's parts with the optimal token baseline."""
    return reinforce.with_advantage(params, Part.of("optimal_token_baseline", params))
