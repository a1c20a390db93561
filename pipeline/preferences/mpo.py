"""MPO: a weighted sum of losses of pairs; by default DPO for the preference, BCO for the quality, and likelihood."""

from __future__ import annotations

from typing import Any

from pydantic import Field, PrivateAttr

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.preferences.base import (
    LikelihoodCoef,
    Loss,
    Losses,
    PairParams,
    PreferenceParams,
    Sides,
    load_preference,
    with_likelihood,
)

SOURCE = "arXiv:2411.10442 eq. 1"
DEPARTURES: tuple[str, ...] = (
    "BCO's rewards are not shifted, as in TRL",
    "the likelihood is averaged over the tokens of each response, as in the paper; TRL's sft averages it over all "
    "tokens of a micro-batch",
)
MPO = ({"name": "dpo", "weight": 0.8}, {"name": "bco", "weight": 0.2})


class Params(PairParams):
    """The losses of the sum, each with its weight and its own numbers."""

    losses: tuple[dict[str, Any], ...] = Field(
        MPO, min_length=1, description="losses of pairs with a reference: {name, weight, and the loss's own numbers}"
    )
    nll_coef: LikelihoodCoef = 1.0
    _loaded: tuple[tuple[float, PreferenceParams, Loss], ...] = PrivateAttr(())

    @property
    def terms(self) -> tuple[dict[str, Any], ...]:
        """The losses of the sum."""
        return self.losses

    def model_post_init(self, _: Any) -> None:
        """Load the losses. Raises: ConfigError for one that is unknown, wrong or no loss of pairs with a reference."""
        self._loaded = tuple(_loss(term) for term in self.losses)


def loss(params: Params, sides: Sides) -> Losses:
    """Return sum_k weight_k loss_k - nll_coef log pi(w) / |w|; implicit rewards are those of the first loss."""
    each = [(weight, function(own, sides)) for weight, own, function in params._loaded]
    first = each[0][1]
    values = sum((weight * losses.values for weight, losses in each[1:]), start=each[0][0] * first.values)
    clamped = [losses.clamped for _, losses in each if losses.clamped is not None]
    total = sum(clamped[1:], start=clamped[0]) if clamped else None
    return Losses(with_likelihood(values, params.nll_coef, sides), first.chosen_rewards, first.rejected_rewards, total)


def _loss(term: dict[str, Any]) -> tuple[float, PreferenceParams, Loss]:
    rest = dict(term)
    name, weight = rest.pop("name", None), rest.pop("weight", 1.0)
    if not isinstance(name, str) or isinstance(weight, bool) or not isinstance(weight, (int, float)) or weight <= 0:
        raise ConfigError(
            f"losses of mpo need a name and a weight above 0, e.g. {{name: dpo, weight: 0.8}}, got {term}"
        )
    own, function = load_preference(name, rest)
    if not isinstance(own, PairParams) or not own.needs_reference or own.needs_weights or own.tail_weight != 1:
        raise ConfigError(
            f"losses of mpo are losses of pairs with a reference, without wpo and ld_alpha of their own, and {term} "
            "is none; use dpo, ipo, bco or another of them, and wpo: true of mpo itself"
        )
    return float(weight), own, function
