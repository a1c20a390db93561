"""IPO: the difference of log-ratios is regressed on 1 / (2 beta)."""

from __future__ import annotations

from pydantic import Field

from verizero.pipeline.preferences.base import Losses, MarginParams, Sides, scores

SOURCE = "arXiv:2310.12036 eq. 17"
DEPARTURES: tuple[str, ...] = (
    "log-ratios are averaged over the tokens of a response (length_average), which its authors confirmed for their "
    "results; the paper's formula sums them",
)


class Params(MarginParams):
    """IPO's numbers."""

    beta: float = Field(0.1, gt=0, description="the paper's tau: the margin asked for is 1 / (2 beta)")
    length_average: bool = Field(True, description="log-ratios per token; false: summed")


def loss(params: Params, sides: Sides) -> Losses:
    """Return (h_w - h_l - 1 / (2 beta))^2; h is the log-ratio, or f'(pi / pi_ref) with another f_divergence."""
    apart = scores(params, sides, params.length_average)
    return apart.times(params.beta).losses((apart.margin - 1 / (2 * params.beta)) ** 2)
