"""EXO: the reverse KL from the policy's choice between the two responses to the choice that the pair asks for."""

from __future__ import annotations

import math

from pydantic import Field

from verizero.pipeline.preferences.base import Losses, MarginParams, Sides, minus_log_sigmoid, scores

SOURCE = "arXiv:2402.00856 eq. 16, for two responses"
DEPARTURES: tuple[str, ...] = ()


class Params(MarginParams):
    """EXO's numbers."""

    label_smoothing: float = Field(
        1e-3, gt=0, lt=0.5, description="probability of the rejected response in the target; 0 has an infinite loss"
    )


def loss(params: Params, sides: Sides) -> Losses:
    """Return q log(q / (1 - e)) + (1 - q) log((1 - q) / e), q = sigmoid(beta (h_w - h_l)), e = label_smoothing."""
    rewards, noise = scores(params, sides).times(params.beta), params.label_smoothing
    margin = rewards.margin
    won = margin.sigmoid() * (-minus_log_sigmoid(margin) - math.log1p(-noise))
    lost = (-margin).sigmoid() * (-minus_log_sigmoid(-margin) - math.log(noise))
    return rewards.losses(won + lost)
