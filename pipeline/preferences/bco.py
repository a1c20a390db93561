"""BCO: each response classified as good or bad by its implicit reward, the chosen one good and the rejected one bad."""

from __future__ import annotations

from verizero.pipeline.preferences.base import Beta, Losses, PairParams, Sides, minus_log_sigmoid

SOURCE = "arXiv:2404.04656, on pairs (TRL's bco_pair)"
DEPARTURES: tuple[str, ...] = (
    "rewards are not shifted, as in TRL's bco_pair; the paper takes off the mean reward of both sides so far",
)


class Params(PairParams):
    """BCO's numbers."""

    beta: Beta = 0.1


def loss(params: Params, sides: Sides) -> Losses:
    """Return -log sigmoid(r_w) - log sigmoid(-r_l); r = beta h, h is the log-ratio."""
    chosen, rejected = params.beta * sides.chosen.log_ratio, params.beta * sides.rejected.log_ratio
    return Losses(minus_log_sigmoid(chosen) + minus_log_sigmoid(-rejected), chosen, rejected)
