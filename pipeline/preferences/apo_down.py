"""APO-down: both responses less likely than under the reference, the rejected one by more.

For chosen responses that are worse than what the policy would say; `apo_zero` is for better ones.
"""

from __future__ import annotations

from verizero.pipeline.preferences import apo_zero
from verizero.pipeline.preferences.base import Losses, Sides

SOURCE = "arXiv:2408.06266 eq. 8"
DEPARTURES: tuple[str, ...] = ("1 is added, as in TRL, so that no pair has a negative loss; gradients are the same",)


class Params(apo_zero.Params):
    """APO-down's numbers."""


def loss(params: Params, sides: Sides) -> Losses:
    """Return sigmoid(beta h_w) + 1 - sigmoid(beta (h_w - h_l)); h is the log-ratio."""
    chosen, rejected = params.beta * sides.chosen.log_ratio, params.beta * sides.rejected.log_ratio
    return Losses(chosen.sigmoid() + (rejected - chosen).sigmoid(), chosen, rejected)
