"""Dr. GRPO: no division by the group's spread or by the response's own length, so neither biases."""

from __future__ import annotations

from pipeline.algorithms.base import ClipHigh, ClipLow, PolicyParams
from pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2503.20783"
DEPARTURES: tuple[str, ...] = ()


class Params(PolicyParams):
    """Dr. GRPO's numbers."""

    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2


def parts(params: Params) -> Parts:
    """Dr. GRPO's parts."""
    return Parts(
        advantage=Part("group_mean"),
        ratio="token",
        surrogate=Part("clip", {"clip_low": params.clip_low, "clip_high": params.clip_high}),
        aggregate="sequence_mean_token_sum_norm",
        **params.rest(),
    )
