"""Losses that compare the two sides without a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from verizero.pipeline.preferences.base import (
    Beta,
    LabelSmoothing,
    LikelihoodCoef,
    Losses,
    PreferenceParams,
    Sides,
    logistic,
    minus_log_sigmoid,
    with_likelihood,
)
from verizero.pipeline.registry import Plugins, named

if TYPE_CHECKING:
    from torch import Tensor

PLUGINS: Plugins = {}
CERTAIN = -1e-6


class AloneParams(PreferenceParams):
    """Numbers of a loss without a reference."""

    needs_reference: ClassVar[bool] = False


@named(
    PLUGINS,
    "cpo",
    "arXiv:2401.08417 eq. 3, and its likelihood term",
    "the likelihood is averaged over the tokens of each response, as in dpo and orpo; the paper sums it, TRL averages "
    "it over all tokens of a micro-batch",
)
class Cpo(AloneParams):
    """CPO: DPO without a reference, and the likelihood of the chosen response in its place."""

    beta: Beta = 0.1
    label_smoothing: LabelSmoothing = 0.0
    nll_coef: LikelihoodCoef = 1.0

    def loss(self, sides: Sides) -> Losses:
        """Return -log sigmoid(beta (log pi(w) - log pi(l))), smoothed, less nll_coef log pi(w) / |w|."""
        chosen, rejected = self.beta * sides.chosen.logprobs, self.beta * sides.rejected.logprobs
        values = logistic(chosen - rejected, self.label_smoothing)
        return Losses(with_likelihood(values, self.nll_coef, sides), chosen, rejected)


@named(PLUGINS, "simpo", "arXiv:2405.14734 eq. 6")
class Simpo(AloneParams):
    """SimPO: the length-averaged log-probability is the reward, with a margin. No reference."""

    beta: float = Field(2.0, gt=0, description="scale of the length-averaged log-probability")
    gamma: float = Field(1.0, ge=0, description="margin by which the chosen side must win")
    label_smoothing: LabelSmoothing = 0.0

    def loss(self, sides: Sides) -> Losses:
        """Return -log sigmoid(beta / |w| log pi(w) - beta / |l| log pi(l) - gamma), smoothed."""
        chosen, rejected = self.beta * sides.chosen.mean_logprobs, self.beta * sides.rejected.mean_logprobs
        return Losses(logistic(chosen - rejected - self.gamma, self.label_smoothing), chosen, rejected)


@named(
    PLUGINS,
    "orpo",
    "arXiv:2403.07691 eq. 3 to 7",
    "a length-averaged log-probability is clamped to -1e-6, above which the odds go to infinity; a side there has no "
    "gradient in the odds",
)
class Orpo(AloneParams):
    """ORPO: the likelihood of the chosen response, and its odds over the rejected response's. No reference."""

    beta: float = Field(0.1, gt=0, description="the paper's lambda: weight of the odds ratio")

    def loss(self, sides: Sides) -> Losses:
        """Return NLL(w) / |w| - beta log sigmoid(log odds(w) - log odds(l)); odds = p / (1 - p), p = pi(y)^(1/|y|)."""
        chosen, rejected = sides.chosen.mean_logprobs, sides.rejected.mean_logprobs
        values = -chosen + self.beta * minus_log_sigmoid(log_odds(chosen) - log_odds(rejected))
        return Losses(values, self.beta * chosen, self.beta * rejected)


def log_odds(log_p: Tensor) -> Tensor:
    """Return log(p / (1 - p)) from log p < 0, exact near p = 0 and near p = 1."""
    log_p = log_p.clamp(max=CERTAIN)
    return log_p - (-log_p.expm1()).log()
