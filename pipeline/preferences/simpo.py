"""SimPO: the length-averaged log-probability is the reward, with a margin. No reference."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from verizero.pipeline.preferences.base import LabelSmoothing, Losses, PairParams, Sides, logistic

SOURCE = "arXiv:2405.14734 eq. 6"
DEPARTURES: tuple[str, ...] = ()


class Params(PairParams):
    """SimPO's numbers."""

    needs_reference: ClassVar[bool] = False
    beta: float = Field(2.0, gt=0, description="scale of the length-averaged log-probability")
    gamma: float = Field(1.0, ge=0, description="margin by which the chosen side must win")
    label_smoothing: LabelSmoothing = 0.0


def loss(params: Params, sides: Sides) -> Losses:
    """Return -log sigmoid(beta / |w| log pi(w) - beta / |l| log pi(l) - gamma), smoothed."""
    chosen, rejected = params.beta * sides.chosen.mean_logprobs, params.beta * sides.rejected.mean_logprobs
    return Losses(logistic(chosen - rejected - params.gamma, params.label_smoothing), chosen, rejected)
