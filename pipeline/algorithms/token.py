"""Objectives that bound each token in another way than PPO's clip."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from verizero.pipeline.algorithms.grpo import ClipParams, GroupNormParams, one_update
from verizero.pipeline.registry import Plugins, named
from verizero.pipeline.rl.parts import Part, Parts, PolicyParams, option

PLUGINS: Plugins = {}
AT_START = "covariances are those of the policy at batch start, so that a batch may be cut into micro-batches"
THRESHOLDS = {"tv": 0.15, "kl": 0.05}
"""DPPO's authors' own, by divergence."""


@named(
    PLUGINS,
    "cispo",
    "arXiv:2506.13585 eq. 4 and 5",
    "clip_high 4 is an absolute cap of 5, as in 2510.13786; the paper tunes it per run",
    one_update(16),
)
class Cispo(GroupNormParams):
    """CISPO: the importance weight is clipped and held, so that every token keeps its gradient.

    J = (1 / sum_i |y_i|) sum_i sum_t sg[clip(r_t, 1 - clip_low, 1 + clip_high)] A_i log pi(y_t)
    A_i and r_t as in GRPO
    """

    clip_low: float | None = Field(None, gt=0, le=1, description="weights stay above 1 - clip_low; null: no bound")
    clip_high: float = option("cispo", "clip_high")

    def parts(self) -> Parts:
        """Return CISPO's parts."""
        return self.of_parts(self.advantage(), "token", Part.of("cispo", self), "token_mean")


@named(PLUGINS, "sapo", "arXiv:2511.20347")
class Sapo(GroupNormParams):
    """SAPO: a smooth gate on the ratio in place of a clip, steeper for negative advantages.

    J   = mean_i (1/|y_i|) sum_t (4 / tau) sigmoid(tau (r_t - 1)) A_i,  A_i and r_t as in GRPO
    tau = tau_positive where A_i > 0, else tau_negative
    """

    tau_positive: float = option("soft_gate", "tau_positive")
    tau_negative: float = option("soft_gate", "tau_negative")

    def parts(self) -> Parts:
        """Return SAPO's parts."""
        return self.of_parts(self.advantage(), "token", Part.of("soft_gate", self), "sequence_mean_token_mean")


@named(PLUGINS, "clip_cov", "arXiv:2505.22617", AT_START)
class ClipCov(ClipParams, GroupNormParams):
    """Clip-Cov: no gradient on a few tokens whose log-prob and advantage vary together most, so entropy lasts.

    J     = (1 / sum_i |y_i|) sum_i sum_t m_t min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i),  A_i as in GRPO
    m_t   = 0 on a random share of all tokens, drawn among those with cov_low <= cov_t <= cov_high, else 1
    cov_t = (log pi(y_t) - mean of log pi) (A_i - mean of A)
    """

    share: float = option("clip_cov", "share")
    cov_low: float = option("clip_cov", "cov_low")
    cov_high: float = option("clip_cov", "cov_high")

    def parts(self) -> Parts:
        """Return Clip-Cov's parts."""
        return self.of_parts(self.advantage(), "token", Part.of("clip_cov", self), "token_mean")


@named(PLUGINS, "kl_cov", "arXiv:2505.22617", AT_START, "the penalty is |log pi - log pi_old|, as in the authors' code")
class KlCov(GroupNormParams):
    """KL-Cov: a penalty on moving the few tokens whose log-prob and advantage vary together most.

    J     = (1 / sum_i |y_i|) sum_i sum_t [ r_t A_i - cov_coef k_t |log r_t| ],  A_i and r_t as in GRPO
    k_t   = 1 on the share of all tokens of highest cov_t, else 0
    cov_t = (log pi(y_t) - mean of log pi) (A_i - mean of A)
    """

    share: float = option("kl_cov", "share")
    cov_coef: float = option("kl_cov", "coef")

    def parts(self) -> Parts:
        """Return KL-Cov's parts."""
        return self.of_parts(self.advantage(), "token", Part.of("kl_cov", self, coef=self.cov_coef), "token_mean")


@named(
    PLUGINS,
    "dppo",
    "arXiv:2602.04879",
    "the binary divergences alone; the paper has others over the most likely tokens",
    "a weight is at most ratio_cap, 20, as in verl at commit 1dda039b9c; the paper has no such bound",
    "pi_old is the trainer's at batch start where the rollouts are fresh; the paper compares to the engine's",
)
class Dppo(PolicyParams):
    """DPPO: tokens stop where their probability has moved too far, not where its ratio has.

    J   = mean_i (1/L) sum_t sg[M_t min(r_t, ratio_cap)] A_i log pi(y_t),  L = the recipe's longest response
    M_t = 0 where pi has left pi_old by more than a threshold in the direction of A_i, else 1
    A_i = R_i - mean of the group,  r_t = pi(y_t) / pi_old(y_t)
    """

    divergence: Literal["tv", "kl"] = option("dppo", "divergence")
    symmetric: bool = option("dppo", "symmetric")
    threshold_low: float | None = Field(
        None, gt=0, description="a token with A < 0 that fell by more than this stops; null: 0.15 for tv, 0.05 for kl"
    )
    threshold_high: float | None = Field(
        None, gt=0, description="a token with A > 0 that rose by more than this stops; null: 0.15 for tv, 0.05 for kl"
    )
    ratio_cap: float | None = option("dppo", "ratio_cap", 20.0)
    drift_coef: float = option("dppo", "drift_coef")

    def parts(self) -> Parts:
        """Return DPPO's parts."""
        usual = THRESHOLDS[self.divergence]
        low = usual if self.threshold_low is None else self.threshold_low
        high = usual if self.threshold_high is None else self.threshold_high
        surrogate = Part.of("dppo", self, threshold_low=low, threshold_high=high)
        return self.of_parts(Part("group_mean"), "token", surrogate, "sequence_mean_token_sum_norm")


@named(
    PLUGINS,
    "prime_rl",
    "prime-rl's default loss at commit 559b44772e (August 2026); arXiv:2602.04879, 2602.02276",
    "the first term has prime-rl's gradient, that of M_t r_t A_i, and another value",
    "pi_old is the trainer's at batch start where the rollouts are fresh; prime-rl's is the engine's",
)
class PrimeRl(Dppo):
    """The loss that prime-rl trains with by default: DPPO by total variation, and a pull back to the sampled policy.

    J = (1 / sum_i |y_i|) sum_i sum_t [ sg[M_t r_t] A_i log pi(y_t) - drift_coef (log r_t)^2 ]
    M_t, A_i and r_t as in DPPO. `symmetric: true` is its other loss, IPO: M_t is 0 on either side of pi_old.
    """

    threshold_low: float | None = option("dppo", "threshold_low", 0.2)
    threshold_high: float | None = option("dppo", "threshold_high", 0.2)
    ratio_cap: float | None = option("dppo", "ratio_cap")
    drift_coef: float = option("dppo", "drift_coef", 1e-3)

    def parts(self) -> Parts:
        """Return DPPO's parts with a mean over all tokens of the batch."""
        return replace(super().parts(), aggregate="token_mean")
