"""Kimi K2: a squared regression of the response's log-ratio on its centred reward.

J = mean_i -(R_i - mean of the group - tau log(pi(y_i) / pi_old(y_i)))^2
"""

from __future__ import annotations

from verizero.pipeline.algorithms.base import BY_ROW, PolicyParams, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2507.20534 section 3.2.3; 2501.12599 eq. 3"
DEPARTURES: tuple[str, ...] = (
    "tau has no number in the papers; 0.5 makes the first gradient that of REINFORCE",
    "PTX loss, token budget and temperature decay are off until the recipe gives them numbers",
    BY_ROW,
)


class Params(PolicyParams):
    """Kimi K2's numbers."""

    tau: float = option("squared", "tau")


def parts(params: Params) -> Parts:
    """Return Kimi K2's parts."""
    return Parts(
        advantage=Part("group_mean"),
        ratio="sequence_product",
        surrogate=Part.of("squared", params),
        aggregate="sequence_mean",
        **params.rest(),
    )
