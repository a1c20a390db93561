"""DeepSeek-V3.2: GRPO without the spread, unbiased KL, off-policy sequence mask, routing and sampling mask kept.

J   = mean_i (1/|y_i|) sum_t [ M_i min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i) - kl_coef r_t k3_t ]
A_i = R_i - mean of the group,  r_t and k3_t as in GRPO
M_i = 0 where A_i < 0 and mean_t log(pi_gen(y_t) / pi(y_t)) > off_policy_delta, else 1
"""

from __future__ import annotations

from dataclasses import replace

from verizero.pipeline.algorithms import dr_grpo
from verizero.pipeline.algorithms.base import ClipParams, Delta, KeepRouting, KeepSampling, KlCoef, KlFormName, KlIn
from verizero.pipeline.rl.parts import Parts

SOURCE = "arXiv:2512.02556 section 3.1"
DEPARTURES: tuple[str, ...] = (
    "delta and the KL coefficient have no number in the paper; 0.1 nats a token and 0.001 are ours",
    "the reference is taken over the kept sampling set and routes by itself; the paper says nothing of it",
)


class Params(ClipParams):
    """DeepSeek-V3.2's numbers."""

    kl_in: KlIn = "loss"
    kl_form: KlFormName = "k3_unbiased"
    kl_coef: KlCoef = 0.001
    off_policy_delta: Delta = 0.1
    keep_routing: KeepRouting = True
    keep_sampling: KeepSampling = True


def parts(params: Params) -> Parts:
    """Return Dr. GRPO's parts with a mean over the tokens of a response."""
    return replace(dr_grpo.parts(params), aggregate="sequence_mean_token_mean")
