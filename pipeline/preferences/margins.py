"""Losses of the margin between the implicit rewards of the two sides; h is the log-ratio of a response."""

from __future__ import annotations

import math

from pydantic import Field

from verizero.pipeline.preferences.base import (
    LabelSmoothing,
    LikelihoodCoef,
    Losses,
    MarginParams,
    Sides,
    logistic,
    minus_log_sigmoid,
    rewards,
    with_likelihood,
)
from verizero.pipeline.registry import Plugins, named

PLUGINS: Plugins = {}


@named(
    PLUGINS,
    "dpo",
    "arXiv:2305.18290 eq. 7; label smoothing as in the authors' note on conservative DPO; nll_coef: 2404.19733; "
    "length_average: 2411.15124 section 4.3",
)
class Dpo(MarginParams):
    """DPO: the chosen response's log-ratio to the reference above the rejected one's, by a logistic loss."""

    label_smoothing: LabelSmoothing = 0.0
    nll_coef: LikelihoodCoef = 0.0
    length_average: bool = Field(False, description="implicit rewards per token (TRL's sigmoid_norm); false: summed")

    def loss(self, sides: Sides) -> Losses:
        """Return -log sigmoid(r_w - r_l), smoothed, less nll_coef log pi(w) / |w|; r = beta h, h is the log-ratio.

        With length_average r is divided by |y|.
        """
        own = rewards(self.beta, sides, self.length_average)
        return own.losses(with_likelihood(logistic(own.margin, self.label_smoothing), self.nll_coef, sides))


@named(PLUGINS, "robust", "arXiv:2403.00409")
class Robust(MarginParams):
    """Robust DPO: DPO's loss without the bias of pairs that are the wrong way round at random."""

    label_smoothing: LabelSmoothing = 0.1

    def loss(self, sides: Sides) -> Losses:
        """Return (-(1 - e) log sigmoid(m) + e log sigmoid(-m)) / (1 - 2e), m = beta (h_w - h_l), e = label_smoothing.

        If a share e of the pairs is swapped at random, its expectation is that of DPO on the pairs as they should be.
        A smoothed `dpo` adds the second term, and so asks for margins that are not too sure; this one takes it away.
        """
        own, noise = rewards(self.beta, sides), self.label_smoothing
        right, wrong = minus_log_sigmoid(own.margin), minus_log_sigmoid(-own.margin)
        return own.losses(((1 - noise) * right - noise * wrong) / (1 - 2 * noise))


@named(
    PLUGINS,
    "ipo",
    "arXiv:2310.12036 eq. 17",
    "log-ratios are averaged over the tokens of a response (length_average), which its authors confirmed for their "
    "results; the paper's formula sums them",
)
class Ipo(MarginParams):
    """IPO: the difference of log-ratios is regressed on 1 / (2 beta)."""

    beta: float = Field(0.1, gt=0, description="the paper's tau: the margin asked for is 1 / (2 beta)")
    length_average: bool = Field(True, description="log-ratios per token; false: summed")

    def loss(self, sides: Sides) -> Losses:
        """Return (h_w - h_l - 1 / (2 beta))^2; h is the log-ratio."""
        apart = rewards(1.0, sides, self.length_average)
        values = (apart.margin - 1 / (2 * self.beta)) ** 2
        return Losses(values, self.beta * apart.chosen, self.beta * apart.rejected)


@named(
    PLUGINS,
    "hinge",
    "arXiv:2309.06657 (hinge-norm), after SLiC, arXiv:2305.10425",
    "SLiC compares log-probs and adds a likelihood term; this compares log-ratios and has none, as RSO and TRL",
)
class Hinge(MarginParams):
    """Hinge: the margin of SLiC on RSO's log-ratios; a pair that is apart by 1 / beta trains no more."""

    def loss(self, sides: Sides) -> Losses:
        """Return max(0, 1 - beta (h_w - h_l)); h is the log-ratio."""
        own = rewards(self.beta, sides)
        return own.losses((1 - own.margin).relu())


@named(PLUGINS, "exo", "arXiv:2402.00856 eq. 16, for two responses")
class Exo(MarginParams):
    """EXO: the reverse KL from the policy's choice between the two responses to the choice that the pair asks for."""

    label_smoothing: float = Field(
        1e-3, gt=0, lt=0.5, description="probability of the rejected response in the target; 0 has an infinite loss"
    )

    def loss(self, sides: Sides) -> Losses:
        """Return q log(q / (1 - e)) + (1 - q) log((1 - q) / e), q = sigmoid(beta (h_w - h_l)), e = label_smoothing."""
        own, noise = rewards(self.beta, sides), self.label_smoothing
        margin = own.margin
        won = margin.sigmoid() * (-minus_log_sigmoid(margin) - math.log1p(-noise))
        lost = (-margin).sigmoid() * (-minus_log_sigmoid(-margin) - math.log(noise))
        return own.losses(won + lost)


@named(PLUGINS, "discopop", "arXiv:2406.08414 eq. 5")
class Discopop(MarginParams):
    """DiscoPOP: a loss that a language model found: logistic for pairs the wrong way round, exponential for others."""

    tau: float = Field(0.05, gt=0, le=1, description="how sharply the loss changes from one form to the other at 0")

    def loss(self, sides: Sides) -> Losses:
        """Return (1 - s) (-log sigmoid(m)) + s exp(-m), m = beta (h_w - h_l), s = sigmoid(m / tau)."""
        own = rewards(self.beta, sides)
        margin = own.margin
        logistic_part = (-margin / self.tau).sigmoid() * minus_log_sigmoid(margin)
        # s exp(-m) as one exponent, which with tau <= 1 is at most log(2) on either side, while exp(-m) may be infinite
        return own.losses(logistic_part + (-margin - minus_log_sigmoid(margin / self.tau)).exp())
