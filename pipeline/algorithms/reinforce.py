"""REINFORCE: the reward itself, no baseline.

J   = mean_i sum_t A_i log pi(y_t)
A_i = R_i - kl_coef sum_t (log pi_old(y_t) - log pi_ref(y_t))
"""

from __future__ import annotations

from pipeline.algorithms.base import KlCoef, KlFormName, KlIn, PolicyParams
from pipeline.rl.parts import Part, Parts

SOURCE = "Williams 1992, doi:10.1007/BF00992696"
DEPARTURES: tuple[str, ...] = ("a KL to the reference is taken off the reward",)


class Params(PolicyParams):
    """REINFORCE's numbers."""

    kl_in: KlIn = "reward"
    kl_form: KlFormName = "k1"
    kl_coef: KlCoef = 0.01


def parts(params: PolicyParams) -> Parts:
    """Return REINFORCE's parts."""
    return Parts(
        advantage=Part("none"),
        ratio="none",
        surrogate=Part("reinforce"),
        aggregate="sequence_mean_token_sum",
        **params.rest(),
    )
