"""ORPO: the likelihood of the chosen response, and its odds over the rejected response's. No reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from verizero.pipeline.preferences.base import Losses, PairParams, Sides, minus_log_sigmoid

if TYPE_CHECKING:
    from torch import Tensor

SOURCE = "arXiv:2403.07691 eq. 3 to 7"
DEPARTURES: tuple[str, ...] = (
    "a length-averaged log-probability is clamped to -1e-6, above which the odds go to infinity; a side there has no "
    "gradient in the odds",
)
CERTAIN = -1e-6


class Params(PairParams):
    """ORPO's numbers."""

    needs_reference: ClassVar[bool] = False
    beta: float = Field(0.1, gt=0, description="the paper's lambda: weight of the odds ratio")


def loss(params: Params, sides: Sides) -> Losses:
    """Return NLL(w) / |w| - beta log sigmoid(log odds(w) - log odds(l)); odds = p / (1 - p), p = pi(y)^(1/|y|)."""
    chosen, rejected = sides.chosen.mean_logprobs, sides.rejected.mean_logprobs
    values = -chosen + params.beta * minus_log_sigmoid(log_odds(chosen) - log_odds(rejected))
    return Losses(values, params.beta * chosen, params.beta * rejected)


def log_odds(log_p: Tensor) -> Tensor:
    """Return log(p / (1 - p)) from log p < 0, exact near p = 0 and near p = 1."""
    log_p = log_p.clamp(max=CERTAIN)
    return log_p - (-log_p.expm1()).log()
