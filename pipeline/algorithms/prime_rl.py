"""The loss that prime-rl trains with by default: DPPO by total variation, and a pull back to the sampled policy.

J = (1 / sum_i |y_i|) sum_i sum_t [ sg[M_t r_t] A_i log pi(y_t) - drift_coef (log r_t)^2 ]
M_t, A_i and r_t as in DPPO. `symmetric: true` is its other loss, IPO: M_t is 0 on either side of pi_old.
"""

from __future__ import annotations

from dataclasses import replace

from verizero.pipeline.algorithms import dppo
from verizero.pipeline.algorithms.base import option
from verizero.pipeline.rl.parts import Parts

SOURCE = "prime-rl's default loss at commit 559b44772e (August 2026); arXiv:2602.04879, 2602.02276"
DEPARTURES: tuple[str, ...] = (
    "the first term has prime-rl's gradient, that of M_t r_t A_i, and another value",
    "pi_old is the trainer's at batch start where the rollouts are fresh; prime-rl's is the engine's",
)


class Params(dppo.Params):
    """DPPO's numbers, as prime-rl has them."""

    threshold_low: float | None = option("dppo", "threshold_low", 0.2)
    threshold_high: float | None = option("dppo", "threshold_high", 0.2)
    ratio_cap: float | None = option("dppo", "ratio_cap")
    drift_coef: float = option("dppo", "drift_coef", 1e-3)


def parts(params: Params) -> Parts:
    """Return DPPO's parts with a mean over all tokens of the batch."""
    return replace(dppo.parts(params), aggregate="token_mean")
