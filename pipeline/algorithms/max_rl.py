"""MaxRL: rewards centred and divided by their mean, which weighs a hard prompt as maximum likelihood would.

J   = mean_i (1/L) sum_t min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i),  L and r_t as in Dr. GRPO
A_i = (R_i - mean of the group) / mean of the group, 0 where the mean is not positive
"""

from __future__ import annotations

from dataclasses import replace

from verizero.pipeline.algorithms import dr_grpo
from verizero.pipeline.algorithms.base import ClipParams
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2602.02710"
DEPARTURES: tuple[str, ...] = ("PPO's clip where a batch is used several times",)

Params = ClipParams


def parts(params: ClipParams) -> Parts:
    """Return Dr. GRPO's parts with the advantage divided by the mean."""
    return replace(dr_grpo.parts(params), advantage=Part("max_rl"))
