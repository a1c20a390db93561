"""OPO: on-policy, with the length-weighted mean of the group, which has the least variance, as baseline."""

from __future__ import annotations

from pipeline.algorithms.base import PolicyParams
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2505.23585"
DEPARTURES: tuple[str, ...] = ()


class Params(PolicyParams):
    """OPO has no numbers of its own."""


def parts(params: Params) -> Parts:
    """OPO's parts."""
    return Parts(
        advantage=Part("optimal_baseline"),
        ratio="none",
        surrogate=Part("reinforce"),
        aggregate="sequence_mean_token_sum",
        **params.rest(),
    )
