"""CPO: DPO without a reference, and the likelihood of the chosen response in its place."""

from __future__ import annotations

from typing import ClassVar

from verizero.pipeline.preferences.base import (
    Beta,
    LabelSmoothing,
    LikelihoodCoef,
    Losses,
    PairParams,
    Sides,
    logistic,
    with_likelihood,
)

SOURCE = "arXiv:2401.08417 eq. 3, and its likelihood term"
DEPARTURES: tuple[str, ...] = (
    "the likelihood is averaged over the tokens of each response, as in dpo and orpo; the paper sums it, TRL averages "
    "it over all tokens of a micro-batch",
)


class Params(PairParams):
    """CPO's numbers."""

    needs_reference: ClassVar[bool] = False
    beta: Beta = 0.1
    label_smoothing: LabelSmoothing = 0.0
    nll_coef: LikelihoodCoef = 1.0


def loss(params: Params, sides: Sides) -> Losses:
    """Return -log sigmoid(beta (log pi(w) - log pi(l))), smoothed, less nll_coef log pi(w) / |w|."""
    chosen, rejected = params.beta * sides.chosen.logprobs, params.beta * sides.rejected.logprobs
    values = logistic(chosen - rejected, params.label_smoothing)
    return Losses(with_likelihood(values, params.nll_coef, sides), chosen, rejected)
