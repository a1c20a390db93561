"""RLOO: REINFORCE with the mean of the group's others as baseline."""

from __future__ import annotations

from pipeline.algorithms.base import KlCoef, KlFormName, KlIn, PolicyParams
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2402.14740"
DEPARTURES: tuple[str, ...] = ()


class Params(PolicyParams):
    """RLOO's numbers."""

    kl_in: KlIn = "reward"
    kl_form: KlFormName = "k1"
    kl_coef: KlCoef = 0.03


def parts(params: Params) -> Parts:
    """RLOO's parts."""
    return Parts(
        advantage=Part("leave_one_out"),
        ratio="none",
        surrogate=Part("reinforce"),
        aggregate="sequence_mean_token_sum",
        **params.rest(),
    )
