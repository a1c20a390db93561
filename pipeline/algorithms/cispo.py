"""CISPO: the importance weight is clipped and held, so that every token keeps its gradient.

J = (1 / sum_i |y_i|) sum_i sum_t sg[clip(r_t, 1 - clip_low, 1 + clip_high)] A_i log pi(y_t),  A_i and r_t as in GRPO
"""

from __future__ import annotations

from pydantic import Field

from verizero.pipeline.algorithms.base import GroupNormParams, one_update, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2506.13585 eq. 4 and 5"
DEPARTURES: tuple[str, ...] = (
    "clip_high 4 is an absolute cap of 5, as in 2510.13786; the paper tunes it per run",
    one_update(16),
)


class Params(GroupNormParams):
    """CISPO's numbers."""

    clip_low: float | None = Field(None, gt=0, le=1, description="weights stay above 1 - clip_low; null: no bound")
    clip_high: float = option("cispo", "clip_high")


def parts(params: Params) -> Parts:
    """Return CISPO's parts."""
    return Parts(
        advantage=params.advantage(),
        ratio="token",
        surrogate=Part.of("cispo", params),
        aggregate="token_mean",
        **params.rest(),
    )
