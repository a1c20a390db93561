"""ReMax: REINFORCE with the reward of the greedy response as baseline."""

from __future__ import annotations

from pipeline.algorithms.base import KlCoef, KlFormName, KlIn, PolicyParams
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2310.10505 algorithm 1"
DEPARTURES: tuple[str, ...] = ("the KL of the greedy response is not part of the baseline",)


class Params(PolicyParams):
    """ReMax's numbers."""

    kl_in: KlIn = "reward"
    kl_form: KlFormName = "k1"
    kl_coef: KlCoef = 0.01


def parts(params: Params) -> Parts:
    """ReMax's parts."""
    return Parts(
        advantage=Part("greedy_baseline"),
        ratio="none",
        surrogate=Part("reinforce"),
        aggregate="sequence_mean_token_sum",
        **params.rest(),
    )
