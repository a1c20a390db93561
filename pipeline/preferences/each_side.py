"""Losses in which each side is compared to the reference by itself, in pairs or as single labelled responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from verizero.pipeline.preferences.base import (
    Beta,
    Losses,
    MarginParams,
    PreferenceParams,
    Sides,
    minus_log_sigmoid,
    rewards,
)
from verizero.pipeline.registry import Plugins, named

if TYPE_CHECKING:
    from torch import Tensor

PLUGINS: Plugins = {}
PLUS_ONE = "1 is added, as in TRL, so that no pair has a negative loss; gradients are the same"


@named(PLUGINS, "apo_zero", "arXiv:2408.06266 eq. 7", PLUS_ONE)
class ApoZero(MarginParams):
    """APO-zero: the chosen response more likely and the rejected one less likely than under the reference.

    For chosen responses that are better than what the policy would say; `apo_down` is for worse ones.
    """

    def loss(self, sides: Sides) -> Losses:
        """Return 1 - sigmoid(beta h_w) + sigmoid(beta h_l); h is the log-ratio."""
        own = rewards(self.beta, sides)
        # 1 - sigmoid(x) = sigmoid(-x), which keeps its digits where sigmoid(x) is near 1.
        return own.losses((-own.chosen).sigmoid() + own.rejected.sigmoid())


@named(PLUGINS, "apo_down", "arXiv:2408.06266 eq. 8", PLUS_ONE)
class ApoDown(MarginParams):
    """APO-down: both responses less likely than under the reference, the rejected one by more.

    For chosen responses that are worse than what the policy would say; `apo_zero` is for better ones.
    """

    def loss(self, sides: Sides) -> Losses:
        """Return sigmoid(beta h_w) + 1 - sigmoid(beta (h_w - h_l)); h is the log-ratio."""
        own = rewards(self.beta, sides)
        return own.losses(own.chosen.sigmoid() + (own.rejected - own.chosen).sigmoid())


@named(
    PLUGINS,
    "bco",
    "arXiv:2404.04656, on pairs (TRL's bco_pair)",
    "rewards are not shifted, as in TRL's bco_pair; the paper takes off the mean reward of both sides so far",
)
class Bco(MarginParams):
    """BCO: each response classified by its implicit reward, the chosen one as good and the rejected one as bad."""

    def loss(self, sides: Sides) -> Losses:
        """Return -log sigmoid(r_w) - log sigmoid(-r_l); r = beta h, h is the log-ratio."""
        own = rewards(self.beta, sides)
        return own.losses(minus_log_sigmoid(own.chosen) + minus_log_sigmoid(-own.rejected))


@named(PLUGINS, "nca", "arXiv:2402.05369, for two responses with hard labels (TRL's nca_pair)")
class Nca(MarginParams):
    """NCA: each response classified against the reference, so that the chosen one's likelihood does not fall."""

    def loss(self, sides: Sides) -> Losses:
        """Return -log sigmoid(r_w) - 1/2 log sigmoid(-r_w) - 1/2 log sigmoid(-r_l); r = beta h, h is the log-ratio."""
        own = rewards(self.beta, sides)
        each = (minus_log_sigmoid(-own.chosen) + minus_log_sigmoid(-own.rejected)) / 2
        return own.losses(minus_log_sigmoid(own.chosen) + each)


@named(
    PLUGINS,
    "sppo",
    "arXiv:2405.00675 eq. 4.7",
    "the chosen response wins with probability 1 (TRL's sppo_hard); the paper estimates it by a ranking model",
)
class Sppo(PreferenceParams):
    """SPPO with hard wins: the chosen log-ratio is regressed on 1 / (2 beta), the rejected one on minus that."""

    beta: float = Field(1e-3, gt=0, description="1 / eta of the paper: log-ratios go to 1 / (2 beta) and its negative")

    def loss(self, sides: Sides) -> Losses:
        """Return (h_w - 1 / (2 beta))^2 + (h_l + 1 / (2 beta))^2; h is the log-ratio."""
        chosen, rejected, aim = sides.chosen.log_ratio, sides.rejected.log_ratio, 1 / (2 * self.beta)
        return Losses((chosen - aim) ** 2 + (rejected + aim) ** 2, self.beta * chosen, self.beta * rejected)


class LabelParams(PreferenceParams):
    """Numbers of a loss of single responses, each good or bad."""

    from_labels: ClassVar[bool] = True
    beta: Beta = 0.1
    desirable_weight: float = Field(1.0, gt=0, description="lambda_D, the weight of good responses")
    undesirable_weight: float = Field(1.0, gt=0, description="lambda_U, the weight of bad responses")


@named(
    PLUGINS,
    "kto",
    "arXiv:2402.01306 eq. 8",
    "the reference point z is estimated over the whole optimiser step, from each prompt with the response of another",
)
class Kto(LabelParams):
    """KTO: single responses, each good or bad, compared to the policy's mean drift from the reference."""

    needs_divergence: ClassVar[bool] = True

    def loss(self, sides: Sides) -> Losses:
        """Return lambda_D (1 - sigmoid(beta (h - z))) of good, lambda_U (1 - sigmoid(beta (z - h))) of bad ones."""
        return against(self, sides, sides.divergence)


@named(PLUGINS, "apo_zero_unpaired", "arXiv:2408.06266 eq. 7, a response at a time as in TRL")
class ApoZeroUnpaired(LabelParams):
    """APO-zero on single responses, each good or bad: KTO whose reference point is 0, so that no KL is estimated."""

    def loss(self, sides: Sides) -> Losses:
        """Return lambda_D (1 - sigmoid(beta h)) of good, lambda_U sigmoid(beta h) of bad ones; h is the log-ratio."""
        return against(self, sides, 0.0)


def against(params: LabelParams, sides: Sides, z: float) -> Losses:
    """Return KTO's loss with that reference point, [good + bad]."""
    good, bad = sides.chosen.log_ratio, sides.rejected.log_ratio
    gains = params.desirable_weight * (1 - (params.beta * (good - z)).sigmoid())
    pains = params.undesirable_weight * (1 - (params.beta * (z - bad)).sigmoid())
    return Losses(_joined(gains, pains), params.beta * good, params.beta * bad)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Return [A] and [B] as one, [A + B], without importing torch."""
    out = first.new_zeros(len(first) + len(second))
    out[: len(first)], out[len(first) :] = first, second
    return out
