"""RLOO: REINFORCE with the mean of the group's others as baseline.

J   = mean_i sum_t A_i log pi(y_t)
A_i = R_i - mean of the group's other R,  each R with the KL taken off as in REINFORCE
"""

from __future__ import annotations

from verizero.pipeline.algorithms import reinforce
from verizero.pipeline.algorithms.base import KlCoef
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2402.14740"
DEPARTURES: tuple[str, ...] = ()


class Params(reinforce.KlParams):
    """REINFORCE's numbers, as RLOO has them."""

    kl_coef: KlCoef = 0.03


def parts(params: Params) -> Parts:
    """Return REINFORCE's parts with a leave-one-out baseline."""
    return reinforce.with_advantage(params, Part("leave_one_out"))
