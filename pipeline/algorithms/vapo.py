"""VAPO: PPO whose critic looks to the end of a response, and whose policy's lambda follows the response's length.

J and A_t as in PPO, with lam = 1 - 1 / (length_alpha |y_i|) for the policy, lam_critic for the returns, no KL
"""

from __future__ import annotations

from pydantic import Field

from verizero.pipeline.algorithms import ppo
from verizero.pipeline.algorithms.base import ClipHigh, KlCoef, KlIn, one_update, option

SOURCE = "arXiv:2504.05118 section 4"
DEPARTURES: tuple[str, ...] = (
    *ppo.DEPARTURES,
    "the log-likelihood of right responses (eq. 12) is off until nll_coef gives it a weight; the paper has 0.1",
    "the critic warms up on the policy's own responses, without a stage before training",
    "values are clipped as in PPO (value_clip 0.2), which the paper does not have; value_clip: null takes it away",
    "the critic learns at the policy's rate; the paper's has twice the policy's (critic_learning_rate)",
    one_update(16),
)


class Params(ppo.Params):
    """PPO's numbers, as VAPO has them."""

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


parts = ppo.parts
