"""APO-zero on single responses, each good or bad: KTO whose reference point is 0, so that no KL is estimated."""

from __future__ import annotations

from typing import ClassVar

from verizero.pipeline.preferences import kto
from verizero.pipeline.preferences.base import Losses, Sides

SOURCE = "arXiv:2408.06266 eq. 7, a response at a time as in TRL"
DEPARTURES: tuple[str, ...] = ()


class Params(kto.Params):
    """KTO's numbers, but no divergence."""

    needs_divergence: ClassVar[bool] = False


def loss(params: Params, sides: Sides) -> Losses:
    """Return lambda_D (1 - sigmoid(beta h)) of good, lambda_U sigmoid(beta h) of bad responses; h is the log-ratio."""
    return kto.loss(params, sides)
