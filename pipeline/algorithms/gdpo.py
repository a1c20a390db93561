"""GDPO: each reward component normalised within its group before they are summed, then whitened over the batch.

J   = mean_i (1/|y_i|) sum_t min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i),  r_t as in GRPO
A_i = whiten over the batch( sum_k weight_k (R_ik - mean of the group) / (std of the group + eps) )
"""

from __future__ import annotations

from verizero.pipeline.algorithms.base import ClipParams, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2601.05242"
DEPARTURES: tuple[str, ...] = ()


class Params(ClipParams):
    """GDPO's numbers."""

    weights: tuple[float, ...] | None = option("normalize_then_sum", "weights")
    ddof: int = option("normalize_then_sum", "ddof")
    eps: float = option("normalize_then_sum", "eps")


def parts(params: Params) -> Parts:
    """Return GDPO's parts."""
    return Parts(
        advantage=Part.of("normalize_then_sum", params),
        ratio="token",
        surrogate=params.clip(),
        aggregate="sequence_mean_token_mean",
        **params.rest(),
    )
