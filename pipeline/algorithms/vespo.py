"""VESPO: REINFORCE weighted by a gamma density of the whole response's ratio, which needs no clip.

J = (1 / sum_i |y_i|) sum_i sum_t sg[exp(lambda + k log w_i - lambda w_i)] A_i log pi(y_t),  A_i as in GRPO
w_i = pi(y_i) / pi_old(y_i);  k and lambda are the positive ones where A_i >= 0, else the negative ones
"""

from __future__ import annotations

from verizero.pipeline.algorithms.base import BY_ROW, GroupNormParams, option
from verizero.pipeline.rl.parts import Part, Parts

SOURCE = "arXiv:2602.10693"
DEPARTURES: tuple[str, ...] = (
    "weights against engine mismatch (mismatch_level) multiply outside of w; TRL puts them inside: w = pi / pi_gen",
    BY_ROW,
)


class Params(GroupNormParams):
    """VESPO's numbers."""

    k_positive: float = option("gamma_weight", "k_positive")
    lambda_positive: float = option("gamma_weight", "lambda_positive")
    k_negative: float = option("gamma_weight", "k_negative")
    lambda_negative: float = option("gamma_weight", "lambda_negative")


def parts(params: Params) -> Parts:
    """Return VESPO's parts."""
    return Parts(
        advantage=params.advantage(),
        ratio="sequence_product",
        surrogate=Part.of("gamma_weight", params),
        aggregate="token_mean",
        **params.rest(),
    )
