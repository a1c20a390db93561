"""REINFORCE++: rewards to go with the KL inside, whitened over all tokens of the batch, PPO's clip, no critic.

J   = (1 / sum_i |y_i|) sum_i sum_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t),  r_t as in PPO
A_t = whiten over all tokens( sum_(s >= t) gamma^(s - t) ([s = last] R - kl_coef k1_s) )
k1  = log pi_old(y_s) - log pi_ref(y_s)
"""

from __future__ import annotations

from verizero.pipeline.algorithms.base import ClipParams, KlCoef, KlFormName, KlIn, RewardClip, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2501.03262"
DEPARTURES: tuple[str, ...] = ("the population's deviation plus eps; implementations differ in both",)


class Params(ClipParams):
    """REINFORCE++'s numbers."""

    gamma: float = option("reward_to_go_norm", "gamma")
    ddof: int = option("reward_to_go_norm", "ddof", 0)
    eps: float = option("reward_to_go_norm", "eps", 1e-8)
    reward_clip: RewardClip = 10.0
    kl_in: KlIn = "reward"
    kl_form: KlFormName = "k1"
    kl_coef: KlCoef = 0.01


def parts(params: Params) -> Parts:
    """Return REINFORCE++'s parts."""
    return Parts(
        advantage=Part.of("reward_to_go_norm", params),
        ratio="token",
        surrogate=params.clip(),
        aggregate="token_mean",
        **params.rest(),
    )
