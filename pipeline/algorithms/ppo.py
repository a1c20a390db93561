"""Objectives with a critic: PPO and VAPO."""

from __future__ import annotations

from pydantic import Field

from verizero.pipeline.algorithms.grpo import ClipParams, one_update
from verizero.pipeline.registry import Plugins, named
from verizero.pipeline.rl.parts import ClipHigh, Critic, KlCoef, KlFormName, KlIn, NumMinibatches, Part, Parts, option

PLUGINS: Plugins = {}
DEPARTURES = (
    "gamma 1: a response is one episode with a reward at its end",
    "advantages are whitened over all tokens of the batch, as in the authors' code",
)


@named(
    PLUGINS,
    "ppo",
    "arXiv:1707.06347 eq. 7 to 9; on language 1909.08593, 2203.02155; options 2503.01491, 2504.05118",
    *DEPARTURES,
)
class Ppo(ClipParams):
    """PPO: a critic with GAE, clipped token ratios, the KL to the reference taken off the reward.

    J   = (1 / sum_i |y_i|) sum_i sum_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)
    A_t = whiten over all tokens( sum_(s >= t) (gamma lam)^(s - t) (reward_s + gamma V_(s+1) - V_s) )
    reward_t = [t = last] R - kl_coef (log pi_old(y_t) - log pi_ref(y_t)),  r_t = pi(y_t) / pi_old(y_t)
    critic: minimise value_loss_coef 0.5 (V_t - return_t)^2,  return_t = A_t before whitening + V_t at batch start
    """

    gamma: float = option("gae", "gamma")
    lam: float = option("gae", "lam")
    lam_critic: float | None = option("gae", "lam_critic")
    length_alpha: float | None = option("gae", "length_alpha")
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

    def parts(self) -> Parts:
        """Return PPO's parts."""
        critic = Critic(
            shared=self.critic_shared,
            loss_coef=self.value_loss_coef,
            clip=self.value_clip,
            warmup_steps=self.critic_warmup_steps,
            learning_rate=self.critic_learning_rate,
        )
        surrogate = self.clip() if self.dual_clip is None else Part.of("dual_clip", self, dual=self.dual_clip)
        return self.of_parts(Part.of("gae", self), "token", surrogate, "token_mean", critic=critic)


@named(
    PLUGINS,
    "vapo",
    "arXiv:2504.05118 section 4",
    *DEPARTURES,
    "without the log-likelihood of right responses (eq. 12), to which the paper gives a weight of 0.1",
    "the critic warms up on the policy's own responses, without a stage before training",
    "values are clipped as in PPO (value_clip 0.2), which the paper does not have; value_clip: null takes it away",
    "the critic learns at the policy's rate; the paper's has twice the policy's (critic_learning_rate)",
    one_update(16),
)
class Vapo(Ppo):
    """VAPO: PPO whose critic looks to the end of a response, and whose policy's lambda follows the response's length.

    J and A_t as in PPO, with lam = 1 - 1 / (length_alpha |y_i|) for the policy, lam_critic for the returns, no KL
    """

    lam_critic: float | None = option("gae", "lam_critic", 1.0)
    length_alpha: float | None = option(
        "gae",
        "length_alpha",
        0.05,
        "lambda = 1 - 1 / (alpha length) for the policy; 0.05 is for thousands of tokens, and 50 want 1",
    )
    clip_high: ClipHigh = 0.28
    critic_warmup_steps: int = Field(50, ge=0, description="steps in which only the critic learns")
    kl_in: KlIn = "none"
    kl_coef: KlCoef = 0.0
