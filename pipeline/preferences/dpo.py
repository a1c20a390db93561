"""DPO: the chosen response's log-ratio to the reference above the rejected one's, by a logistic loss."""

from __future__ import annotations

from pydantic import Field

from pipeline.preferences.base import Beta, LabelSmoothing, Losses, PreferenceParams, Sides, logistic

SOURCE = "arXiv:2305.18290 eq. 7; label smoothing as in the authors' note on conservative DPO; nll_coef: 2404.19733"
DEPARTURES: tuple[str, ...] = ()


class Params(PreferenceParams):
    """DPO's numbers."""

    beta: Beta = 0.1
    label_smoothing: LabelSmoothing = 0.0
    nll_coef: float = Field(0.0, ge=0, description="weight of the chosen response's length-averaged likelihood")


def loss(params: Params, sides: Sides) -> Losses:
    """Return -log sigmoid(beta (h_w - h_l)), smoothed, less nll_coef log pi(w) / |w|; h is the log-ratio."""
    chosen, rejected = params.beta * sides.chosen.log_ratio, params.beta * sides.rejected.log_ratio
    values = logistic(chosen - rejected, params.label_smoothing)
    if params.nll_coef > 0:
        values = values - params.nll_coef * sides.chosen.mean_logprobs
    return Losses(values, chosen, rejected)
