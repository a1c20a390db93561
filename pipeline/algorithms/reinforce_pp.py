"""REINFORCE++: rewards to go with the KL inside, whitened over all tokens of the batch, PPO's clip, no critic."""

from __future__ import annotations

from pipeline.algorithms.base import (
    ClipHigh,
    ClipLow,
    Ddof,
    Eps,
    Gamma,
    KlCoef,
    KlFormName,
    KlIn,
    PolicyParams,
    RewardClip,
)
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2501.03262"
DEPARTURES: tuple[str, ...] = ("the population's deviation plus eps; implementations differ in both",)


class Params(PolicyParams):
    """REINFORCE++'s numbers."""

    gamma: Gamma = 1.0
    ddof: Ddof = 0
    eps: Eps = 1e-8
    reward_clip: RewardClip = 10.0
    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2
    kl_in: KlIn = "reward"
    kl_form: KlFormName = "k1"
    kl_coef: KlCoef = 0.01


def parts(params: Params) -> Parts:
    """REINFORCE++'s parts."""
    return Parts(
        advantage=Part("reward_to_go_norm", {"gamma": params.gamma, "ddof": params.ddof, "eps": params.eps}),
        ratio="token",
        surrogate=Part("clip", {"clip_low": params.clip_low, "clip_high": params.clip_high}),
        aggregate="token_mean",
        **params.rest(),
    )
