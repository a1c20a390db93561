"""DAPO: clip-higher, loss per token of the batch, dynamic sampling, soft overlong penalty, no KL.

J = (1 / sum_i |y_i|) sum_i sum_t min(r_t A_i, clip(r_t, 1 - clip_low, 1 + clip_high) A_i),  A_i and r_t as in GRPO
over groups whose rewards differ;  R_i falls by up to overlong_factor over the last overlong_buffer of the length
"""

from __future__ import annotations

from dataclasses import replace

from verizero.pipeline.algorithms import grpo
from verizero.pipeline.algorithms.base import Buffer, ClipHigh, Dynamic, KlCoef, KlIn, one_update
from verizero.pipeline.rl.parts import Parts

SOURCE = "arXiv:2503.14476 eq. 8 to 13"
DEPARTURES: tuple[str, ...] = (
    "the overlong buffer is a share of the longest response (0.2, as 4096 of 20480)",
    "the mean is over all tokens of the batch, as in the authors' code; eq. 8 has one for each prompt (prompt_mean)",
    one_update(16),
)


class Params(grpo.Params):
    """GRPO's numbers, as DAPO has them."""

    clip_high: ClipHigh = 0.28
    dynamic_sampling: Dynamic = True
    overlong_buffer: Buffer = 0.2
    kl_in: KlIn = "none"
    kl_coef: KlCoef = 0.0


def parts(params: Params) -> Parts:
    """Return GRPO's parts with a mean over all tokens of the batch."""
    return replace(grpo.parts(params), aggregate="token_mean")
