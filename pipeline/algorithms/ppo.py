"""PPO: a critic with GAE, clipped token ratios, the KL to the reference taken off the reward.

    J   = (1 / sum_i |y_i|) sum_i sum_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)
    A_t = whiten over all tokens( sum_(s >= t) (gamma lam)^(s - t) (reward_s + gamma V_(s+1) - V_s) )
    reward_t = [t = last] R - kl_coef (log pi_old(y_t) - log pi_ref(y_t)),  r_t = pi(y_t) / pi_old(y_t)
    critic: minimise value_loss_coef 0.5 (V_t - return_t)^2,  return_t = A_t before whitening + V_t at batch start

VAPO's choice of its options is a preset of its own: `vapo`.
"""

from __future__ import annotations

from pydantic import Field

from verizero.pipeline.algorithms.base import ClipParams, KlCoef, KlFormName, KlIn, NumMinibatches, option
from verizero.pipeline.rl.parts import Critic, Part, Parts

SOURCE = "arXiv:1707.06347 eq. 7 to 9; on language 1909.08593, 2203.02155; options 2503.01491, 2504.05118"
DEPARTURES: tuple[str, ...] = (
    "gamma 1: a response is one episode with a reward at its end",
    "advantages are whitened over all tokens of the batch, as in the authors' code",
)


class Params(ClipParams):
    """PPO's numbers."""

    gamma: float = option("gae", "gamma")
    lam: float = option("gae", "lam")
    lam_critic: float | None = option("gae", "lam_critic")
    length_alpha: float | None = option("gae", "length_alpha")
    bootstrap_truncated: bool = option("gae", "bootstrap_truncated")
    whiten: bool = option("gae", "whiten")
    ddof: int = option("gae", "ddof")
    eps: float = option("gae", "eps", 1e-8)
    dual_clip: float | None = option("dual_clip", "dual", None, "bound on the loss where A < 0 (1912.09729 has 3)")
    value_clip: float | None = Field(0.2, gt=0, description="values move at most this far from those at batch start")
    value_loss_coef: float = Field(1.0, gt=0, description="weight of the critic's loss")
    critic_shared: bool = Field(False, description="a head on the policy's backbone; else a backbone of its own")
    critic_warmup_steps: int = Field(0, ge=0, description="steps in which only the critic learns")
    critic_learning_rate: float | None = Field(None, gt=0, description="null: the policy's")
    kl_in: KlIn = "reward"
    kl_form: KlFormName = "k1"
    kl_coef: KlCoef = 0.05
    num_minibatches: NumMinibatches = 4


def parts(params: Params) -> Parts:
    """Return PPO's parts."""
    return Parts(
        advantage=Part.of("gae", params),
        ratio="token",
        surrogate=params.clip() if params.dual_clip is None else Part.of("dual_clip", params, dual=params.dual_clip),
        aggregate="token_mean",
        critic=Critic(
            shared=params.critic_shared,
            loss_coef=params.value_loss_coef,
            clip=params.value_clip,
            warmup_steps=params.critic_warmup_steps,
            learning_rate=params.critic_learning_rate,
        ),
        **params.rest(),
    )
