"""SAPO: a smooth gate on the ratio in place of a clip, steeper for negative advantages.

J   = mean_i (1/|y_i|) sum_t (4 / tau) sigmoid(tau (r_t - 1)) A_i,  A_i and r_t as in GRPO
tau = tau_positive where A_i > 0, else tau_negative
"""

from __future__ import annotations

from verizero.pipeline.algorithms.base import GroupNormParams, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2511.20347"
DEPARTURES: tuple[str, ...] = ()


class Params(GroupNormParams):
    """SAPO's numbers."""

    tau_positive: float = option("soft_gate", "tau_positive")
    tau_negative: float = option("soft_gate", "tau_negative")


def parts(params: Params) -> Parts:
    """Return SAPO's parts."""
    return Parts(
        advantage=params.advantage(),
        ratio="token",
        surrogate=Part.of("soft_gate", params),
        aggregate="sequence_mean_token_mean",
        **params.rest(),
    )
