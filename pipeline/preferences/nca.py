"""NCA: each response classified against the reference, so that the chosen one's likelihood does not fall."""

from __future__ import annotations

from verizero.pipeline.preferences.base import Beta, Losses, PairParams, Sides, minus_log_sigmoid

SOURCE = "arXiv:2402.05369, for two responses with hard labels (TRL's nca_pair)"
DEPARTURES: tuple[str, ...] = ()


class Params(PairParams):
    """NCA's numbers."""

    beta: Beta = 0.1


def loss(params: Params, sides: Sides) -> Losses:
    """Return -log sigmoid(r_w) - 1/2 log sigmoid(-r_w) - 1/2 log sigmoid(-r_l); r = beta h, h is the log-ratio."""
    chosen, rejected = params.beta * sides.chosen.log_ratio, params.beta * sides.rejected.log_ratio
    each = (minus_log_sigmoid(-chosen) + minus_log_sigmoid(-rejected)) / 2
    return Losses(minus_log_sigmoid(chosen) + each, chosen, rejected)
