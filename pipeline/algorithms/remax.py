"""ReMax: REINFORCE with the reward of the greedy response as baseline.

J   = mean_i sum_t A_i log pi(y_t)
A_i = R_i - R of the greedy response,  R_i with the KL taken off as in REINFORCE
"""

from __future__ import annotations

from dataclasses import replace

from pipeline.algorithms import reinforce
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2310.10505 algorithm 1"
DEPARTURES: tuple[str, ...] = ("the KL of the greedy response is not part of the baseline",)

Params = reinforce.Params


def parts(params: reinforce.Params) -> Parts:
    """Return REINFORCE's parts with the greedy baseline."""
    return replace(reinforce.parts(params), advantage=Part("greedy_baseline"))
