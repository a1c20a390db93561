"""FlashREINFORCE: one response a prompt, the batch's mean as baseline, no response whose policy has moved too far.

J   = mean_i (1/|y_i|) sum_t sg[m_i w_t] A_i log pi(y_t),  A_i = R_i - mean of the batch,  w_t = pi(y_t) / pi_gen(y_t)
m_i = 0 where the mean over the response of the binary KL from pi_gen to pi is above 0.003, else 1
"""

from __future__ import annotations

import math
from dataclasses import replace

from pydantic import Field

from verizero.pipeline.algorithms import reinforce
from verizero.pipeline.algorithms.base import Cap, MismatchName, PolicyParams, Reject, Stale
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "FlashREINFORCE, Hu et al. 2026, https://github.com/yifanzhang-pro/FlashREINFORCE"
DEPARTURES: tuple[str, ...] = (
    "w and the KL are of the policy at batch start, which is pi with one optimiser step on each batch, as in the paper",
    "log w is bounded by 20, as every log-ratio here; the authors' trainer bounds it by 30",
)


class Params(PolicyParams):
    """FlashREINFORCE's numbers."""

    mismatch_level: MismatchName = "token"
    mismatch_cap: Cap = math.inf
    mismatch_stale: Stale = "decoupled"
    mismatch_reject: Reject = Field({"mean_binary_kl": 3e-3})


def parts(params: Params) -> Parts:
    """Return REINFORCE's parts with the batch's mean as baseline, and a mean over each response's tokens."""
    parts = reinforce.with_advantage(params, Part("batch_mean"))
    return replace(parts, aggregate="sequence_mean_token_mean")
