"""REINFORCE: the reward itself, no baseline.

J   = mean_i sum_t A_t log pi(y_t)
A_t = R_i - kl_coef sum_(s >= t) (log pi_old(y_s) - log pi_ref(y_s))
"""

from __future__ import annotations

from typing import Literal

from verizero.pipeline.algorithms.base import KlCoef, KlFormName, KlIn, PolicyParams, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "Williams 1992, doi:10.1007/BF00992696"
DEPARTURES: tuple[str, ...] = (
    "a KL to the reference is taken off the reward; a token answers for the KL from itself to the end",
)


class KlParams(PolicyParams):
    """REINFORCE's KL, which is taken off the reward."""

    kl_in: KlIn = "reward"
    kl_form: KlFormName = "k1"
    kl_coef: KlCoef = 0.01


class Params(KlParams):
    """REINFORCE's numbers."""

    kl_credit: Literal["to_go", "response"] = option("none", "kl_credit")


def parts(params: Params) -> Parts:
    """Return REINFORCE's parts."""
    return with_advantage(params, Part.of("none", params))


def with_advantage(params: PolicyParams, advantage: Part) -> Parts:
    """Return REINFORCE's parts with that advantage in the place of the reward."""
    return Parts(
        advantage=advantage,
        ratio="none",
        surrogate=Part("reinforce"),
        aggregate="sequence_mean_token_sum",
        **params.rest(),
    )
