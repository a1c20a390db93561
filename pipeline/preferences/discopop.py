"""DiscoPOP: a loss that a language model found: logistic for pairs the wrong way round, exponential for the others."""

from __future__ import annotations

from pydantic import Field

from verizero.pipeline.preferences.base import Losses, MarginParams, Sides, minus_log_sigmoid, scores

SOURCE = "arXiv:2406.08414 eq. 5"
DEPARTURES: tuple[str, ...] = ()


class Params(MarginParams):
    """DiscoPOP's numbers."""

    tau: float = Field(0.05, gt=0, le=1, description="how sharply the loss changes from one form to the other at 0")


def loss(params: Params, sides: Sides) -> Losses:
    """Return (1 - s) (-log sigmoid(m)) + s exp(-m), m = beta (h_w - h_l), s = sigmoid(m / tau).

    With another f_divergence h is f'(pi / pi_ref).
    """
    rewards = scores(params, sides).times(params.beta)
    margin = rewards.margin
    logistic = (-margin / params.tau).sigmoid() * minus_log_sigmoid(margin)
    # s exp(-m) as one exponent, which with tau <= 1 is at most log(2) on either side, while exp(-m) may be infinite
    return rewards.losses(logistic + (-margin - minus_log_sigmoid(margin / params.tau)).exp())
