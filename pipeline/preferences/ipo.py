"""IPO: the difference of log-ratios is regressed on 1 / (2 beta)."""

from __future__ import annotations

from pydantic import Field

from pipeline.preferences.base import Losses, PreferenceParams, Sides

SOURCE = "arXiv:2310.12036 eq. 17"
DEPARTURES: tuple[str, ...] = (
    "log-ratios are averaged over the tokens of a response (length_average), which its authors confirmed for their "
    "results; the paper's formula sums them",
)


class Params(PreferenceParams):
    """IPO's numbers."""

    beta: float = Field(0.1, gt=0, description="the paper's tau: the margin asked for is 1 / (2 beta)")
    length_average: bool = Field(True, description="log-ratios per token; false: summed")


def loss(params: Params, sides: Sides) -> Losses:
    """Return (h_w - h_l - 1 / (2 beta))^2; h is the log-ratio."""
    chosen, rejected = sides.chosen.log_ratio, sides.rejected.log_ratio
    if params.length_average:
        chosen, rejected = chosen / sides.chosen.lengths, rejected / sides.rejected.lengths
    values = (chosen - rejected - 1 / (2 * params.beta)) ** 2
    return Losses(values, params.beta * chosen, params.beta * rejected)
