"""OPO: on-policy, with the length-weighted mean of the group, which has the least variance, as baseline.

J   = mean_i sum_t A_i log pi(y_t)
A_i = R_i - sum_j |y_j| R_j / sum_j |y_j| over the group
"""

from __future__ import annotations

from verizero.pipeline.algorithms import reinforce
from verizero.pipeline.algorithms.base import PolicyParams
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2505.23585"
DEPARTURES: tuple[str, ...] = ()

Params = PolicyParams


def parts(params: PolicyParams) -> Parts:
    """Return REINFORCE's parts with the optimal baseline."""
    return reinforce.with_advantage(params, Part("optimal_baseline"))
