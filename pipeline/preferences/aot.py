"""AOT: the margins of all pairs above those of the reference, as distributions: rank by rank, not pair by pair.

The ranks are those among all pairs of the optimiser step, whatever its micro-batches and ranks of processes. They take
one more forward without gradient.
"""

from __future__ import annotations

from typing import ClassVar

from verizero.pipeline.preferences.base import Beta, LabelSmoothing, Losses, PreferenceParams, Sides, logistic

SOURCE = "arXiv:2406.05882, paired (TRL's aot)"
DEPARTURES: tuple[str, ...] = ("ranks are among the pairs of the whole optimiser step; TRL's among those of a device",)


class Params(PreferenceParams):
    """AOT's numbers."""

    sorts_pairs: ClassVar[bool] = True
    beta: Beta = 0.1
    label_smoothing: LabelSmoothing = 0.0


def loss(params: Params, sides: Sides) -> Losses:
    """Return -log sigmoid(beta (log pi(w) - log pi(l) - d)), smoothed; d is the reference's margin of the same rank."""
    assert sides.matched is not None
    margin = params.beta * (sides.chosen.logprobs - sides.rejected.logprobs - sides.matched)
    values = logistic(margin, params.label_smoothing)
    return Losses(values, params.beta * sides.chosen.log_ratio, params.beta * sides.rejected.log_ratio)
