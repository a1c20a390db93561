"""GSPO-token: the response's ratio by value, each token's own gradient, so advantages may differ between tokens.

J   = mean_i (1/|y_i|) sum_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t),  A_t as in GRPO
r_t = sg[(pi(y_i) / pi_old(y_i))^(1/|y_i|)] pi(y_t) / sg[pi(y_t)]
"""

from __future__ import annotations

from dataclasses import replace

from verizero.pipeline.algorithms import gspo
from verizero.pipeline.algorithms.base import BY_ROW
from verizero.pipeline.rl.parts import Parts

SOURCE = "arXiv:2507.18071 eq. 13 and 14"
DEPARTURES: tuple[str, ...] = (BY_ROW,)

Params = gspo.Params


def parts(params: gspo.Params) -> Parts:
    """Return GSPO's parts with a ratio that has each token's gradient."""
    return replace(gspo.parts(params), ratio="sequence_token")
