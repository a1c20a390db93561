"""GRPO and what changes its numbers: rewards compared within a group, token ratios under PPO's clip.

In each formula of this folder r is the importance ratio, A the advantage, and sg stops the gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from verizero.pipeline.registry import Plugins, named
from verizero.pipeline.rl.parts import (
    Buffer,
    ClipHigh,
    CreditName,
    Delta,
    Dynamic,
    KeepRouting,
    KeepSampling,
    KlCoef,
    KlFormName,
    KlIn,
    Part,
    Parts,
    PolicyParams,
    ReferenceName,
    option,
)

PLUGINS: Plugins = {}
SAMPLE_STD = "the standard deviation is the sample's (ddof 1); the paper leaves it open"
CLIPPED = "PPO's clip where a batch is used several times"


def one_update(steps: int) -> str:
    """Return the departure of an algorithm whose paper takes several optimiser steps on each batch."""
    return f"a batch is one optimiser step; the paper takes {steps} (num_minibatches), and clips from the second on"


class GroupNormParams(PolicyParams):
    """Parameters of the advantage that is normalised within each group."""

    std: Literal["group", "batch", "none"] = option("group_norm", "std")
    ddof: int = option("group_norm", "ddof")
    eps: float = option("group_norm", "eps")

    def advantage(self) -> Part:
        """Return the group-normalised advantage with these numbers."""
        return Part.of("group_norm", self)


class ClipParams(PolicyParams):
    """Parameters of PPO's clip."""

    clip_low: float = option("clip", "clip_low")
    clip_high: float = option("clip", "clip_high")

    def clip(self) -> Part:
        """Return the clipped surrogate with these numbers."""
        return Part.of("clip", self)


@named(PLUGINS, "grpo", "arXiv:2402.03300 eq. 3 and 4", SAMPLE_STD)
class Grpo(ClipParams, GroupNormParams):
    """GRPO: rewards normalised within each group, clipped token ratios, k3 to a reference in the loss.

    J   = mean_i (1/|y_i|) sum_t [ min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i) - kl_coef k3_t ]
    A_i = (R_i - mean of the group) / (std of the group + eps)
    r_t = pi(y_t) / pi_old(y_t),  k3_t = exp(d) - d - 1,  d = log pi_ref(y_t) - log pi(y_t)
    """

    kl_in: KlIn = "loss"
    kl_form: KlFormName = "k3"
    kl_coef: KlCoef = 0.04

    def parts(self) -> Parts:
        """Return GRPO's parts."""
        return self.of_parts(self.advantage(), "token", self.clip(), "sequence_mean_token_mean")


@named(
    PLUGINS,
    "grpo_process",
    "arXiv:2402.03300 section 4.1.3",
    SAMPLE_STD,
    "a response without rewards of steps (no answer, truncated) is one step with its own reward; the paper has none",
    "tokens after the last step count as its own; the paper leaves their advantage open",
)
class GrpoProcess(Grpo):
    """GRPO with process supervision: a token answers for the steps that end at or after it.

    J as in GRPO, with A_i,t = sum_(j: step j ends at or after t) (r_ij - mean) / (std + eps) in place of A_i
    r_ij = the verifier's reward for step j of response i; mean and std are of all r_ij of the group
    """

    credit: CreditName = "process"
    credit_outcome: float = option("process", "outcome", 0.0)


@named(
    PLUGINS,
    "r1_zero",
    "arXiv:2501.12948; 2402.03300",
    "the reference moves once a round; the paper replaces it every 400 steps",
    "the clip is GRPO's 0.2; the supplement of doi:10.1038/s41586-025-09422-z has 10, which hardly ever acts",
    one_update(16),
)
class R1Zero(Grpo):
    """R1-Zero: GRPO with a weak KL to a reference that moves every round.

    J as in GRPO, with pi_ref replaced by pi at the start of each round
    """

    kl_coef: KlCoef = 0.001
    reference: ReferenceName = "every_round"


@named(
    PLUGINS,
    "dapo",
    "arXiv:2503.14476 eq. 8 to 13",
    "the overlong buffer is a share of the longest response (0.2, as 4096 of 20480)",
    "the mean is over all tokens of the batch, as in the authors' code; eq. 8 has one for each prompt",
    one_update(16),
)
class Dapo(Grpo):
    """DAPO: clip-higher, loss per token of the batch, dynamic sampling, soft overlong penalty, no KL.

    J = (1 / sum_i |y_i|) sum_i sum_t min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i),  A_i and r_t as in GRPO
    over groups whose rewards differ;  R_i falls by up to overlong_factor over the last overlong_buffer of the length
    """

    clip_high: ClipHigh = 0.28
    dynamic_sampling: Dynamic = True
    overlong_buffer: Buffer = 0.2
    kl_in: KlIn = "none"
    kl_coef: KlCoef = 0.0

    def parts(self) -> Parts:
        """Return GRPO's parts with a mean over all tokens of the batch."""
        return replace(super().parts(), aggregate="token_mean")


@named(PLUGINS, "dr_grpo", "arXiv:2503.20783")
class DrGrpo(ClipParams):
    """Dr. GRPO: no division by the group's spread or by the response's own length, so neither biases.

    J = mean_i (1/L) sum_t min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i),  r_t as in GRPO
    A_i = R_i - mean of the group,  L = the recipe's longest response
    """

    def parts(self) -> Parts:
        """Return Dr. GRPO's parts."""
        return self.of_parts(Part("group_mean"), "token", self.clip(), "sequence_mean_token_sum_norm")


@named(
    PLUGINS,
    "deepseek_v32",
    "arXiv:2512.02556 section 3.1",
    "delta and the KL coefficient have no number in the paper; 0.1 nats a token and 0.001 are ours",
    "the reference is taken over the kept sampling set and routes by itself; the paper says nothing of it",
)
class DeepseekV32(DrGrpo):
    """DeepSeek-V3.2: GRPO without the spread, unbiased KL, off-policy sequence mask, routing and sampling mask kept.

    J   = mean_i (1/|y_i|) sum_t [ M_i min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i) - kl_coef r_t k3_t ]
    A_i = R_i - mean of the group,  r_t and k3_t as in GRPO
    M_i = 0 where A_i < 0 and mean_t log(pi_gen(y_t) / pi(y_t)) > off_policy_delta, else 1
    """

    kl_in: KlIn = "loss"
    kl_form: KlFormName = "k3_unbiased"
    kl_coef: KlCoef = 0.001
    off_policy_delta: Delta = 0.1
    keep_routing: KeepRouting = True
    keep_sampling: KeepSampling = True

    def parts(self) -> Parts:
        """Return Dr. GRPO's parts with a mean over the tokens of a response."""
        return replace(super().parts(), aggregate="sequence_mean_token_mean")


@named(PLUGINS, "gdpo", "arXiv:2601.05242")
class Gdpo(ClipParams):
    """GDPO: each reward component normalised within its group before they are summed, then whitened over the batch.

    J   = mean_i (1/|y_i|) sum_t min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i),  r_t as in GRPO
    A_i = whiten over the batch( sum_k weight_k (R_ik - mean of the group) / (std of the group + eps) )
    """

    weights: tuple[float, ...] | None = option("normalize_then_sum", "weights")
    ddof: int = option("normalize_then_sum", "ddof")
    eps: float = option("normalize_then_sum", "eps")

    def parts(self) -> Parts:
        """Return GDPO's parts."""
        advantage = Part.of("normalize_then_sum", self)
        return self.of_parts(advantage, "token", self.clip(), "sequence_mean_token_mean")


@named(PLUGINS, "max_rl", "arXiv:2602.02710", CLIPPED)
class MaxRl(DrGrpo):
    """MaxRL: rewards centred and divided by their mean, which weighs a hard prompt as maximum likelihood would.

    J   = mean_i (1/L) sum_t min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i),  L and r_t as in Dr. GRPO
    A_i = (R_i - mean of the group) / mean of the group, 0 where the mean is not positive
    """

    def parts(self) -> Parts:
        """Return Dr. GRPO's parts with the advantage divided by the mean."""
        return replace(super().parts(), advantage=Part("max_rl"))


@named(
    PLUGINS,
    "pass_at_k",
    "arXiv:2503.19595; subsets 2505.15201",
    CLIPPED,
    "the baseline is the best of the subset's others; 2505.15201 has other baselines too",
    "undivided, as the gradient of the expected best asks; verl divides by the group's deviation",
)
class PassAtK(DrGrpo):
    """Pass@k: a response is worth what it adds to the best of k, so that a group is rewarded for its best try.

    J   = mean_i (1/L) sum_t min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i),  L and r_t as in Dr. GRPO
    A_i = the mean, over the subsets S of k responses of the group, of best of S - best of S without i
    """

    k: int | None = option("best_of_k", "k")

    def parts(self) -> Parts:
        """Return Dr. GRPO's parts with the gain over the best of k."""
        return replace(super().parts(), advantage=Part.of("best_of_k", self))
