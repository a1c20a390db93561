"""DPO: the chosen response's log-ratio to the reference above the rejected one's, by a logistic loss."""

from __future__ import annotations

from pydantic import Field

from verizero.pipeline.preferences.base import (
    LabelSmoothing,
    LikelihoodCoef,
    Losses,
    MarginParams,
    Sides,
    logistic,
    scores,
    with_likelihood,
)

SOURCE = (
    "arXiv:2305.18290 eq. 7; label smoothing as in the authors' note on conservative DPO; nll_coef: 2404.19733; "
    "length_average: 2411.15124 section 4.3; ld_alpha: 2409.06411"
)
DEPARTURES: tuple[str, ...] = ("f_alpha is 1 less the alpha of 2309.16240, as in TRL 1.16: reverse KL is f_alpha 1",)


class Params(MarginParams):
    """DPO's numbers."""

    label_smoothing: LabelSmoothing = 0.0
    nll_coef: LikelihoodCoef = 0.0
    length_average: bool = Field(False, description="implicit rewards per token (TRL's sigmoid_norm); false: summed")
    ld_alpha: float | None = Field(
        None, ge=0, le=1, description="weight of a response's tokens beyond the length of the other one; null: 1"
    )

    @property
    def tail_weight(self) -> float:
        """`ld_alpha`."""
        return 1.0 if self.ld_alpha is None else self.ld_alpha


def loss(params: Params, sides: Sides) -> Losses:
    """Return -log sigmoid(r_w - r_l), smoothed, less nll_coef log pi(w) / |w|; r = beta h, h is the log-ratio.

    With another f_divergence r is beta f'(pi / pi_ref); with length_average it is divided by |y|.
    """
    rewards = scores(params, sides, params.length_average).times(params.beta)
    return rewards.losses(with_likelihood(logistic(rewards.margin, params.label_smoothing), params.nll_coef, sides))
