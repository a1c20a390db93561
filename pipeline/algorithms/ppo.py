"""PPO: a critic with GAE, clipped token ratios, the KL to the reference taken off the reward.

VAPO's choice of its options is a preset of its own: `vapo`.
"""

from __future__ import annotations

from pydantic import Field

from pipeline.algorithms.base import (
    ClipHigh,
    ClipLow,
    Ddof,
    Eps,
    Gamma,
    KlCoef,
    KlFormName,
    KlIn,
    NumMinibatches,
    PolicyParams,
)
from pipeline.rl.parts import Critic, Part, Parts

SOURCE = "arXiv:1707.06347 eq. 7 to 9; on language 1909.08593, 2203.02155; options 2503.01491, 2504.05118"
DEPARTURES: tuple[str, ...] = (
    "gamma 1: a response is one episode with a reward at its end",
    "advantages are whitened over all tokens of the batch, as in the authors' code",
)


class Params(PolicyParams):
    """PPO's numbers."""

    gamma: Gamma = 1.0
    lam: float = Field(0.95, ge=0, le=1, description="lambda of GAE")
    lam_critic: float | None = Field(None, ge=0, le=1, description="lambda of the critic's returns; null: the same")
    length_alpha: float | None = Field(None, gt=0, description="lambda = 1 - 1 / (alpha length) for the policy")
    bootstrap_truncated: bool = Field(False, description="a truncated response ends with the critic's value, not 0")
    whiten: bool = Field(True, description="advantages to mean 0 and deviation 1 over the batch")
    ddof: Ddof = 1
    eps: Eps = 1e-8
    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2
    dual_clip: float | None = Field(None, gt=1, description="bound on the loss where A < 0 (1912.09729 has 3)")
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
    """PPO's parts."""
    clip = {"clip_low": params.clip_low, "clip_high": params.clip_high}
    return Parts(
        advantage=Part(
            "gae",
            {
                "gamma": params.gamma,
                "lam": params.lam,
                "lam_critic": params.lam_critic,
                "length_alpha": params.length_alpha,
                "bootstrap_truncated": params.bootstrap_truncated,
                "whiten": params.whiten,
                "ddof": params.ddof,
                "eps": params.eps,
            },
        ),
        ratio="token",
        surrogate=Part("clip", clip)
        if params.dual_clip is None
        else Part("dual_clip", {**clip, "dual": params.dual_clip}),
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
