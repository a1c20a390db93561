"""Base of a preference loss's parameters, the inputs of a loss, and the way from a recipe's `loss:` to it.

A file of one loss has `class Params(PreferenceParams)` and `loss(params, sides) -> Losses`; it states `SOURCE` (the
paper) and `DEPARTURES` (the differences from it). A file of several has a class for each with a method `loss`, which
`registry.named` puts into the file's `PLUGINS`. It loads no tensors: it calls methods of the tensors that it gets.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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


Beta = Annotated[float, Field(gt=0, description="inverse temperature of the implicit reward")]
LabelSmoothing = Annotated[float, Field(ge=0, lt=0.5, description="share of pairs that may be the wrong way round")]
LikelihoodCoef = Annotated[float, Field(ge=0, description="weight of the chosen response's length-averaged likelihood")]


class MarginParams(PreferenceParams):
    """Numbers of a loss of implicit rewards, which are beta times the log-ratio to the reference."""

    beta: Beta = 0.1


@dataclass(frozen=True, slots=True)
class Responses:
    """One side of a micro-batch: a number for each response."""

    logprobs: Tensor
    """[B] summed over the response's tokens, with gradient."""
    lengths: Tensor
    """[B] tokens of the response, at least 1, in the type of `logprobs`."""
    ref_logprobs: Tensor | None = None
    """[B] of the reference; None if the loss has no reference."""

    @property
    def log_ratio(self) -> Tensor:
        """h(y) = log pi(y|x) - log pi_ref(y|x), [B]."""
        assert self.ref_logprobs is not None
        return self.logprobs - self.ref_logprobs

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


@dataclass(frozen=True, slots=True)
class Losses:
    """The values of a loss. Training minimises their mean over the optimiser step."""

    values: Tensor
    """[pairs], or for a loss of labels [chosen + rejected]."""
    chosen_rewards: Tensor
    """[B] implicit rewards, for metrics."""
    rejected_rewards: Tensor


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


@dataclass(frozen=True, slots=True)
class Rewards:
    """Implicit rewards of both sides, [pairs] each."""

    chosen: Tensor
    rejected: Tensor

    @property
    def margin(self) -> Tensor:
        """Chosen less rejected, [pairs]."""
        return self.chosen - self.rejected

    def losses(self, values: Tensor) -> Losses:
        """Return those values of a loss, with these rewards."""
        return Losses(values, self.chosen, self.rejected)


def rewards(beta: float, sides: Sides, length_average: bool = False) -> Rewards:
    """Return beta times the log-ratio of both sides; with `length_average` divided by the tokens of the response."""
    chosen, rejected = sides.chosen.log_ratio, sides.rejected.log_ratio
    if length_average:
        chosen, rejected = chosen / sides.chosen.lengths, rejected / sides.rejected.lengths
    return Rewards(beta * chosen, beta * rejected)


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
    """Return the formula, numbers, models and departures of a loss. Raises: as `load_preference`."""
    checked, function = load_preference(name, params)
    module = registry.find("preferences", name)
    numbers = [f"{key} {value}" for key, value in checked]
    lines = [
        f"loss        {name}  ({module.SOURCE})",
        f"minimise    the mean over {'responses' if checked.from_labels else 'pairs'} of {_formula(function)}",
        f"numbers     {', '.join(numbers)}",
    ]
    reference = "reference (its log-probs are computed once)" if checked.needs_reference else "no reference"
    lines.append(f"models      policy (trained); {reference}")
    return "\n".join(lines + [f"departs     {text}" for text in module.DEPARTURES or ("in nothing that is known",)])


def _formula(function: Loss) -> str:
    """Return the formula in the first line of the docstring."""
    return (inspect.getdoc(function) or "").split("\n")[0].removeprefix("Return ").removesuffix(".")
