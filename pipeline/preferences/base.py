"""Base of a preference loss's parameters, the inputs of a loss, and the way from a recipe's `loss:` to it.

A loss file has `class Params(PreferenceParams)` and `loss(params, sides) -> Losses`; it states `SOURCE` (the paper) and
`DEPARTURES` (the differences from it). It loads no tensors: it calls methods of the tensors that it gets. A loss of
pairs takes `PairParams`; one of the margin between implicit rewards takes `MarginParams`, and calls `scores`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from verizero.pipeline import registry
from verizero.pipeline.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class PreferenceParams(BaseModel):
    """Frozen; unknown keys are refused. Defaults live in the subclass and nowhere else."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    needs_reference: ClassVar[bool] = True
    """The loss compares the policy to a reference."""
    from_labels: ClassVar[bool] = False
    """The loss takes single responses, each good or bad; else pairs, whose sides have equal indices."""
    needs_divergence: ClassVar[bool] = False
    """The loss takes an estimate of the KL to the reference, from prompts with responses to other prompts."""
    sorts_pairs: ClassVar[bool] = False
    """The loss compares margins of equal rank among the pairs of the optimiser step, `Sides.matched`."""

    @property
    def tail_weight(self) -> float:
        """Weight in the log-ratio of the tokens of a response beyond the length of the other one."""
        return 1.0

    @property
    def needs_weights(self) -> bool:
        """True if each pair's loss is multiplied by a weight, `Sides.weights`."""
        return False

    @property
    def terms(self) -> tuple[Mapping[str, Any], ...]:
        """The losses that this one is a weighted sum of, as a recipe has them; empty: it is no sum."""
        return ()


Beta = Annotated[float, Field(gt=0, description="inverse temperature of the implicit reward")]
LabelSmoothing = Annotated[float, Field(ge=0, lt=0.5, description="share of pairs that may be the wrong way round")]
LikelihoodCoef = Annotated[float, Field(ge=0, description="weight of the chosen response's length-averaged likelihood")]


class PairParams(PreferenceParams):
    """Numbers of any loss of pairs."""

    wpo: bool = Field(False, description="weigh each pair by the policy's likelihood of both responses (2406.11827)")

    @property
    def needs_weights(self) -> bool:
        """True if pairs are weighed by their likelihood."""
        return self.wpo


class MarginParams(PairParams):
    """Numbers of a loss of the margin: the chosen response's implicit reward less the rejected one's."""

    beta: Beta = 0.1
    f_divergence: Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"] = Field(
        "reverse_kl", description="the divergence from the reference that bounds the policy (2309.16240)"
    )
    f_alpha: float | None = Field(
        None, ge=0, le=1, description="of alpha_divergence, which needs it: 1 is reverse KL, 0 is forward KL"
    )

    @model_validator(mode="after")
    def _alpha_fits(self) -> MarginParams:
        if self.f_divergence == "alpha_divergence" and self.f_alpha is None:
            raise ValueError("f_divergence=alpha_divergence needs f_alpha; set f_alpha: 0.5, or another of 0 to 1")
        if self.f_divergence != "alpha_divergence" and self.f_alpha is not None:
            raise ValueError(
                f"f_alpha={self.f_alpha} is read with f_divergence=alpha_divergence alone, and f_divergence="
                f"{self.f_divergence}; set f_divergence: alpha_divergence, or drop f_alpha"
            )
        return self


@dataclass(frozen=True, slots=True)
class Responses:
    """One side of a micro-batch: a number for each response."""

    logprobs: Tensor
    """[B] summed over the response's tokens, with gradient."""
    lengths: Tensor
    """[B] tokens of the response, at least 1, in the type of `logprobs`."""
    ref_logprobs: Tensor | None = None
    """[B] of the reference, weighed as `weighed_logprobs`; None if the loss has no reference."""
    weighed_logprobs: Tensor | None = None
    """[B] as `logprobs`, where tokens beyond the other response's length have `tail_weight`; None: all count 1."""

    @property
    def log_ratio(self) -> Tensor:
        """h(y) = log pi(y|x) - log pi_ref(y|x), [B]."""
        assert self.ref_logprobs is not None
        return (self.logprobs if self.weighed_logprobs is None else self.weighed_logprobs) - self.ref_logprobs

    @property
    def mean_logprobs(self) -> Tensor:
        """log pi(y|x) / |y|, [B]."""
        return self.logprobs / self.lengths


@dataclass(frozen=True, slots=True)
class Sides:
    """A micro-batch of chosen and rejected responses."""

    chosen: Responses
    rejected: Responses
    divergence: float = 0.0
    """z: the estimate of the KL to the reference over the whole optimiser step, at least 0."""
    weights: Tensor | None = None
    """[pairs] without gradient, by which `weighed` multiplies the loss; None: 1."""
    matched: Tensor | None = None
    """[pairs] log pi_ref(w|x) - log pi_ref(l|x) of the pair whose rank by it is that of this pair by the policy's."""


@dataclass(frozen=True, slots=True)
class Losses:
    """The values of a loss. Training minimises their mean over the optimiser step."""

    values: Tensor
    """[pairs], or for a loss of labels [chosen + rejected]."""
    chosen_rewards: Tensor
    """[B] implicit rewards, for metrics."""
    rejected_rewards: Tensor
    clamped: Tensor | None = None
    """[] the number of responses whose implicit reward was clamped; None: the loss clamps none."""


Loss = Callable[[Any, Sides], Losses]


def minus_log_sigmoid(x: Tensor) -> Tensor:
    """Return -log sigmoid(x) = log(1 + exp(-x)), without overflow on either side."""
    return (-x).logaddexp(x.new_zeros(()))


def logistic(margin: Tensor, label_smoothing: float) -> Tensor:
    """Return -log sigmoid(margin), and for the share of pairs in `label_smoothing` -log sigmoid(-margin)."""
    values = (1 - label_smoothing) * minus_log_sigmoid(margin)
    return values + label_smoothing * minus_log_sigmoid(-margin) if label_smoothing > 0 else values


def with_likelihood(values: Tensor, nll_coef: float, sides: Sides) -> Tensor:
    """Return values - nll_coef log pi(w) / |w|, [pairs]; w is the chosen response."""
    return values - nll_coef * sides.chosen.mean_logprobs if nll_coef > 0 else values


def weighed(losses: Losses, sides: Sides) -> Losses:
    """Return the losses, each pair's multiplied by its weight where the sides have weights."""
    return losses if sides.weights is None else replace(losses, values=losses.values * sides.weights)


MAX_EXPONENT = 40.0
"""Bound of the exponents in `scores`: e^40, and its square in a loss or a gradient's norm, fit into float32."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Implicit rewards of both sides, [pairs] each, up to a factor."""

    chosen: Tensor
    rejected: Tensor
    clamped: Tensor | None
    """As in `Losses`."""

    @property
    def margin(self) -> Tensor:
        """Chosen less rejected, [pairs]."""
        return self.chosen - self.rejected

    def times(self, factor: float) -> Scores:
        """Return both sides times that."""
        return replace(self, chosen=factor * self.chosen, rejected=factor * self.rejected)

    def losses(self, values: Tensor) -> Losses:
        """Return those values of a loss, with these rewards."""
        return Losses(values, self.chosen, self.rejected, self.clamped)


def scores(params: MarginParams, sides: Sides, length_average: bool = False) -> Scores:
    """Return f'(pi / pi_ref) of both sides, less f'(1): times beta, they are the implicit rewards (2309.16240).

    f' - f'(1) of the ratio u with log u = h is h for reverse_kl, 1 - 1/u for forward_kl, log(2u / (1 + u)) for
    js_divergence, (u^(a - 1) - 1) / (a - 1) for alpha_divergence with a = f_alpha. With `length_average` they are
    divided by the tokens of the response, after f'.

    Exponents of the powers of u are clamped to MAX_EXPONENT: a response beyond it, at least e^40 times less likely than
    under the reference, has no gradient and counts in `clamped`.
    """
    chosen, rejected, clamped = sides.chosen.log_ratio, sides.rejected.log_ratio, None
    power = _power(params)
    if power is None:
        chosen, rejected = (math.log(2) - minus_log_sigmoid(h) for h in (chosen, rejected))
    elif power < 1:  # at 1 it is the log-ratio itself
        exponents = [(power - 1) * h for h in (chosen, rejected)]
        above = [(x.detach() > MAX_EXPONENT).sum() for x in exponents]
        clamped = above[0] + above[1]
        chosen, rejected = (x.clamp(max=MAX_EXPONENT).expm1() / (power - 1) for x in exponents)
    if length_average:
        chosen, rejected = chosen / sides.chosen.lengths, rejected / sides.rejected.lengths
    return Scores(chosen, rejected, clamped)


def _power(params: MarginParams) -> float | None:
    """Return the a of alpha_divergence that gives this divergence; None for js_divergence, which none gives."""
    return {"reverse_kl": 1.0, "forward_kl": 0.0, "alpha_divergence": params.f_alpha}.get(params.f_divergence)


def load_preference(name: str, params: Mapping[str, Any] | None = None) -> tuple[PreferenceParams, Loss]:
    """Return the validated parameters of the loss `name`, and its function.

    Raises: UnknownName with the near ones; ConfigError for an unknown or wrong parameter, or for a plug-in without
    `Params` and `loss`.
    """
    module = registry.find("preferences", name)
    params_type, function = getattr(module, "Params", None), getattr(module, "loss", None)
    if not (isinstance(params_type, type) and issubclass(params_type, PreferenceParams) and callable(function)):
        raise ConfigError(f"preference {name!r} must have a class Params(PreferenceParams) and loss(params, sides)")
    try:
        return params_type.model_validate(dict(params or {})), function
    except ValidationError as exc:
        reason = registry.refused_parameters(exc.errors(), list(params_type.model_fields))
        raise ConfigError(f"preference {name!r}: {reason}") from exc


def explain_preference(name: str, params: Mapping[str, Any] | None = None) -> str:
    """Return the page of `explain` for the loss `name`: its formula and numbers, models in memory, departures.

    Raises: as `load_preference`.
    """
    checked, function = load_preference(name, params)
    module = registry.find("preferences", name)
    numbers = [f"{key} {value}" for key, value in checked if value is not None and key != "losses"]
    lines = [
        f"loss        {name}  ({module.SOURCE})",
        f"minimise    the mean over {'responses' if checked.from_labels else 'pairs'} of {_formula(function)}",
        f"numbers     {', '.join(numbers)}",
    ]
    for term in checked.terms:
        own = {key: value for key, value in term.items() if key not in ("name", "weight")}
        numbers_of_term = "".join(f", {key} {value}" for key, value in own.items())
        formula = _formula(registry.find("preferences", term["name"]).loss)
        lines.append(f"  loss      {term.get('weight', 1.0)} {term['name']}{numbers_of_term}: {formula}")
    if checked.tail_weight != 1:
        lines.append(f"log-ratio   tokens beyond the length of the other response count {checked.tail_weight:g}")
    if checked.needs_weights:
        lines.append("weights     the loss of a pair is multiplied by the policy's likelihood of both responses")
    reference = "reference (its log-probs are computed once)" if checked.needs_reference else "no reference"
    lines.append(f"models      policy (trained); {reference}")
    return "\n".join(lines + [f"departs     {text}" for text in module.DEPARTURES or ("in nothing that is known",)])


def _formula(function: Loss) -> str:
    """Return the formula in the first line of the docstring."""
    return (inspect.getdoc(function) or "").split("\n")[0].removeprefix("Return ").removesuffix(".")
