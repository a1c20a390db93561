"""SPPO with hard wins: the chosen log-ratio is regressed on 1 / (2 beta), the rejected one on minus that."""

from __future__ import annotations

from pydantic import Field

from verizero.pipeline.preferences.base import Losses, PairParams, Sides

SOURCE = "arXiv:2405.00675 eq. 4.7"
DEPARTURES: tuple[str, ...] = (
    "the chosen response wins with probability 1 (TRL's sppo_hard); the paper estimates it by a ranking model",
)


class Params(PairParams):
    """SPPO's numbers."""

    beta: float = Field(1e-3, gt=0, description="1 / eta of the paper: log-ratios go to 1 / (2 beta) and its negative")


def loss(params: Params, sides: Sides) -> Losses:
    """Return (h_w - 1 / (2 beta))^2 + (h_l + 1 / (2 beta))^2; h is the log-ratio."""
    chosen, rejected, aim = sides.chosen.log_ratio, sides.rejected.log_ratio, 1 / (2 * params.beta)
    return Losses((chosen - aim) ** 2 + (rejected + aim) ** 2, params.beta * chosen, params.beta * rejected)
