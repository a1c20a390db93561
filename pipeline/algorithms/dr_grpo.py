"""Dr. GRPO: no division by the group's spread or by the response's own length, so neither biases.

J = mean_i (1/L) sum_t min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i),  r_t as in GRPO
A_i = R_i - mean of the group,  L = the recipe's longest response
"""

from __future__ import annotations

from verizero.pipeline.algorithms.base import ClipParams
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2503.20783"
DEPARTURES: tuple[str, ...] = ()

Params = ClipParams


def parts(params: ClipParams) -> Parts:
    """Return Dr. GRPO's parts."""
    return Parts(
        advantage=Part("group_mean"),
        ratio="token",
        surrogate=params.clip(),
        aggregate="sequence_mean_token_sum_norm",
        **params.rest(),
    )
