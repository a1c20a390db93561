"""KTO: single responses, each good or bad, compared to the policy's mean drift from the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from verizero.pipeline.preferences.base import Beta, Losses, PreferenceParams, Sides

if TYPE_CHECKING:
    from torch import Tensor

SOURCE = "arXiv:2402.01306 eq. 8"
DEPARTURES: tuple[str, ...] = (
    "the reference point z is estimated over the whole optimiser step, from each prompt with the response of another",
)


class Params(PreferenceParams):
    """KTO's numbers."""

    needs_divergence: ClassVar[bool] = True
    from_labels: ClassVar[bool] = True
    beta: Beta = 0.1
    desirable_weight: float = Field(1.0, gt=0, description="lambda_D, the weight of good responses")
    undesirable_weight: float = Field(1.0, gt=0, description="lambda_U, the weight of bad responses")


def loss(params: Params, sides: Sides) -> Losses:
    """Return lambda_D (1 - sigmoid(beta (h - z))) of good, lambda_U (1 - sigmoid(beta (z - h))) of bad responses."""
    good, bad, z = sides.chosen.log_ratio, sides.rejected.log_ratio, sides.divergence
    gains = params.desirable_weight * (1 - (params.beta * (good - z)).sigmoid())
    pains = params.undesirable_weight * (1 - (params.beta * (z - bad)).sigmoid())
    return Losses(_joined(gains, pains), params.beta * good, params.beta * bad)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Return [A] and [B] as one, [A + B], without importing torch."""
    out = first.new_zeros(len(first) + len(second))
    out[: len(first)], out[len(first) :] = first, second
    return out
