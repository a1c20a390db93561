"""APO-zero: the chosen response more likely and the rejected one less likely than under the reference, each by itself.

For chosen responses that are better than what the policy would say; `apo_down` is for worse ones.
"""

from __future__ import annotations

from verizero.pipeline.preferences.base import Beta, Losses, PairParams, Sides

SOURCE = "arXiv:2408.06266 eq. 7"
DEPARTURES: tuple[str, ...] = ("1 is added, as in TRL, so that no pair has a negative loss; gradients are the same",)


class Params(PairParams):
    """APO-zero's numbers."""

    beta: Beta = 0.1


def loss(params: Params, sides: Sides) -> Losses:
    """Return 1 - sigmoid(beta h_w) + sigmoid(beta h_l); h is the log-ratio."""
    chosen, rejected = params.beta * sides.chosen.log_ratio, params.beta * sides.rejected.log_ratio
    # 1 - sigmoid(x) = sigmoid(-x), which keeps its digits where sigmoid(x) is near 1.
    return Losses((-chosen).sigmoid() + rejected.sigmoid(), chosen, rejected)
