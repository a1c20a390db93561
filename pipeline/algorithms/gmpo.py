"""GMPO: the geometric mean of token ratios, each clipped in log space.

J = mean_i A_i exp( (1/|y_i|) sum_t s min(s log r_t, clip(s log r_t, -clip, clip)) ),  s = sign A_i
A_i and r_t as in GRPO
"""

from __future__ import annotations

from verizero.pipeline.algorithms.base import BY_ROW, GroupNormParams, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2507.20673"
DEPARTURES: tuple[str, ...] = (BY_ROW,)


class Params(GroupNormParams):
    """GMPO's numbers."""

    clip: float = option("geometric_mean", "clip")


def parts(params: Params) -> Parts:
    """Return GMPO's parts."""
    return Parts(
        advantage=params.advantage(),
        ratio="token",
        surrogate=Part.of("geometric_mean", params),
        aggregate="sequence_mean",
        **params.rest(),
    )
