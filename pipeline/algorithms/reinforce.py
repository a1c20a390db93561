"""REINFORCE with its baselines, and REINFORCE++."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from pydantic import Field

from verizero.pipeline.algorithms.grpo import ClipParams
from verizero.pipeline.registry import Plugins, named
from verizero.pipeline.rl.parts import (
    Cap,
    KlCoef,
    KlFormName,
    KlIn,
    MismatchName,
    Part,
    Parts,
    PolicyParams,
    Reject,
    RewardClip,
    Stale,
    option,
)

PLUGINS: Plugins = {}
POPULATION_STD = "the population's deviation plus eps; implementations differ in both"


class OnPolicyParams(PolicyParams):
    """Numbers of the sum of A log pi(y_t), without a ratio."""

    def with_advantage(self, advantage: Part) -> Parts:
        """Return REINFORCE's parts with that advantage in the place of the reward."""
        return self.of_parts(advantage, "none", Part("reinforce"), "sequence_mean_token_sum")


class KlParams(OnPolicyParams):
    """REINFORCE's KL, which is taken off the reward."""

    kl_in: KlIn = "reward"
    kl_form: KlFormName = "k1"
    kl_coef: KlCoef = 0.01


@named(
    PLUGINS,
    "reinforce",
    "Williams 1992, doi:10.1007/BF00992696",
    "a KL to the reference is taken off the reward; a token answers for the KL from itself to the end",
)
class Reinforce(KlParams):
    """REINFORCE: the reward itself, no baseline.

    J   = mean_i sum_t A_t log pi(y_t)
    A_t = R_i - kl_coef sum_(s >= t) (log pi_old(y_s) - log pi_ref(y_s))
    """

    kl_credit: Literal["to_go", "response"] = option("none", "kl_credit")

    def parts(self) -> Parts:
        """Return REINFORCE's parts."""
        return self.with_advantage(Part.of("none", self))


@named(
    PLUGINS,
    "remax",
    "arXiv:2310.10505 algorithm 1",
    "the KL of the greedy response is not part of the baseline",
    "a token answers for the KL from itself to the end, as in verl; kl_credit: response has that of the whole response",
)
class Remax(Reinforce):
    """ReMax: REINFORCE with the reward of the greedy response as baseline.

    J   = mean_i sum_t A_t log pi(y_t)
    A_t = R_i - R of the greedy response,  R_i with the KL taken off as in REINFORCE
    """

    def parts(self) -> Parts:
        """Return REINFORCE's parts with the greedy baseline."""
        return self.with_advantage(Part.of("greedy_baseline", self))


@named(PLUGINS, "rloo", "arXiv:2402.14740")
class Rloo(KlParams):
    """RLOO: REINFORCE with the mean of the group's others as baseline.

    J   = mean_i sum_t A_i log pi(y_t)
    A_i = R_i - mean of the group's other R,  each R with the KL taken off as in REINFORCE
    """

    kl_coef: KlCoef = 0.03

    def parts(self) -> Parts:
        """Return REINFORCE's parts with a leave-one-out baseline."""
        return self.with_advantage(Part("leave_one_out"))


@named(PLUGINS, "opo", "arXiv:2505.23585")
class Opo(OnPolicyParams):
    """OPO: on-policy, with the length-weighted mean of the group, which has the least variance, as baseline.

    J   = mean_i sum_t A_i log pi(y_t)
    A_i = R_i - sum_j |y_j| R_j / sum_j |y_j| over the group
    """

    def parts(self) -> Parts:
        """Return REINFORCE's parts with the optimal baseline."""
        return self.with_advantage(Part("optimal_baseline"))


@named(
    PLUGINS,
    "otb",
    "arXiv:2602.07078",
    "the baseline is over the others, which leaves the expected gradient as it is; verl's is over all",
    "a token that no other response reaches has the mean of the others' rewards as baseline; verl has 0",
)
class Otb(OnPolicyParams):
    """OTB: a baseline for each token, weighted by how far each response has moved the gradient by then.

    J   = mean_i sum_t A_t log pi(y_t)
    A_t = R_i - sum_j W_jt R_j / sum_j W_jt over the group's other responses that have a token t
    W_t = sum_(s <= t) (1 - 2 pi(y_s) + sum of the squared probabilities of all words at s)
    """

    def parts(self) -> Parts:
        """Return REINFORCE's parts with the optimal token baseline."""
        return self.with_advantage(Part("optimal_token_baseline"))


@named(
    PLUGINS,
    "flash_reinforce",
    "FlashREINFORCE, Hu et al. 2026, https://github.com/yifanzhang-pro/FlashREINFORCE",
    "w and the KL are of the policy at batch start, which is pi with one optimiser step on each batch, as in the paper",
    "log w is bounded by 20, as every log-ratio here; the authors' trainer bounds it by 30",
)
class FlashReinforce(OnPolicyParams):
    """FlashREINFORCE: one response a prompt, the batch's mean as baseline, no response whose policy has moved too far.

    J   = mean_i (1/|y_i|) sum_t sg[m_i w_t] A_i log pi(y_t),  A_i = R_i - mean of the batch
    w_t = pi(y_t) / pi_gen(y_t)
    m_i = 0 where the mean over the response of the binary KL from pi_gen to pi is above 0.003, else 1
    """

    mismatch_level: MismatchName = "token"
    mismatch_cap: Cap = math.inf
    mismatch_stale: Stale = "decoupled"
    mismatch_reject: Reject = Field({"mean_binary_kl": 3e-3})

    def parts(self) -> Parts:
        """Return REINFORCE's parts with the batch's mean as baseline, and a mean over each response's tokens."""
        return replace(self.with_advantage(Part("batch_mean")), aggregate="sequence_mean_token_mean")


@named(PLUGINS, "reinforce_pp", "arXiv:2501.03262", POPULATION_STD)
class ReinforcePp(ClipParams):
    """REINFORCE++: rewards to go with the KL inside, whitened over all tokens of the batch, PPO's clip, no critic.

    J   = (1 / sum_i |y_i|) sum_i sum_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t),  r_t as in PPO
    A_t = whiten over all tokens( sum_(s >= t) gamma^(s - t) ([s = last] R - kl_coef k1_s) )
    k1  = log pi_old(y_s) - log pi_ref(y_s)
    """

    gamma: float = option("reward_to_go_norm", "gamma")
    ddof: int = option("reward_to_go_norm", "ddof", 0)
    eps: float = option("reward_to_go_norm", "eps", 1e-8)
    reward_clip: RewardClip = 10.0
    kl_in: KlIn = "reward"
    kl_form: KlFormName = "k1"
    kl_coef: KlCoef = 0.01

    def parts(self) -> Parts:
        """Return REINFORCE++'s parts."""
        return self.of_parts(Part.of("reward_to_go_norm", self), "token", self.clip(), "token_mean")


@named(PLUGINS, "reinforce_pp_baseline", "arXiv:2501.03262", POPULATION_STD)
class ReinforcePpBaseline(ClipParams):
    """REINFORCE++-baseline: the group's mean taken off, then whitened over all tokens, k2 in the loss.

    J   = (1 / sum_i |y_i|) sum_i sum_t [ min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i) - kl_coef d^2 / 2 ]
    A_i = whiten over all tokens( R_i - mean of the group ),  d = log pi_ref(y_t) - log pi(y_t),  r_t as in PPO
    """

    ddof: int = option("group_mean_batch_norm", "ddof", 0)
    eps: float = option("group_mean_batch_norm", "eps", 1e-8)
    kl_in: KlIn = "loss"
    kl_form: KlFormName = "k2"
    kl_coef: KlCoef = 0.01

    def parts(self) -> Parts:
        """Return REINFORCE++-baseline's parts."""
        return self.of_parts(Part.of("group_mean_batch_norm", self), "token", self.clip(), "token_mean")
