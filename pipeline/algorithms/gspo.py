"""GSPO: one length-normalised ratio per response, with a clip of its own size.

J   = mean_i min(r_i A_i, clip(r_i, 1 - clip_low, 1 + clip_high) A_i),  A_i as in GRPO
r_i = (pi(y_i) / pi_old(y_i))^(1/|y_i|)
"""

from __future__ import annotations

from dataclasses import replace

from verizero.pipeline.algorithms import grpo
from verizero.pipeline.algorithms.base import BY_ROW, ClipHigh, ClipLow, KlCoef, KlIn, one_update
from verizero.pipeline.rl.parts import Parts

SOURCE = "arXiv:2507.18071 eq. 5 to 7"
DEPARTURES: tuple[str, ...] = (BY_ROW, one_update(4))


class Params(grpo.Params):
    """GRPO's numbers, as GSPO has them."""

    clip_low: ClipLow = 3e-4
    clip_high: ClipHigh = 4e-4
    kl_in: KlIn = "none"
    kl_coef: KlCoef = 0.0


def parts(params: Params) -> Parts:
    """Return GRPO's parts with the ratio of the whole response."""
    return replace(grpo.parts(params), ratio="sequence")
