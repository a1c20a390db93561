"""LUSPO: GSPO's sequence loss times the response's length, which takes away its pull to short responses.

J = mean_i |y_i| min(r_i A_i, clip(r_i, 1 - clip_low, 1 + clip_high) A_i),  A_i and r_i as in GSPO
"""

from __future__ import annotations

from dataclasses import replace

from verizero.pipeline.algorithms import gspo
from verizero.pipeline.algorithms.base import BY_ROW
from verizero.pipeline.rl.parts import Parts

SOURCE = "arXiv:2602.05261"
DEPARTURES: tuple[str, ...] = (BY_ROW,)

Params = gspo.Params


def parts(params: gspo.Params) -> Parts:
    """Return GSPO's parts with a sum over the tokens of a response."""
    return replace(gspo.parts(params), aggregate="sequence_mean_token_sum")
