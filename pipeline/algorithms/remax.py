"""ReMax: REINFORCE with the reward of the greedy response as baseline.

J   = mean_i sum_t A_t log pi(y_t)
A_t = R_i - R of the greedy response,  R_i with the KL taken off as in REINFORCE
"""

from __future__ import annotations

from verizero.pipeline.algorithms import reinforce
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2310.10505 algorithm 1"
DEPARTURES: tuple[str, ...] = (
    "the KL of the greedy response is not part of the baseline",
    "a token answers for the KL from itself to the end, as in verl; kl_credit: response has that of the whole response",
)

Params = reinforce.Params


def parts(params: reinforce.Params) -> Parts:
    """Return REINFORCE's parts with the greedy baseline."""
    return reinforce.with_advantage(params, Part.of("greedy_baseline", params))
