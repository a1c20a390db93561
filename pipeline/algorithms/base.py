"""Base of an algorithm's parameters, and the way from a recipe's `algorithm:` section to its parts.

An algorithm file has `class Params(AlgorithmParams)` and `parts(params) -> Parts`; it says `SOURCE` (the paper) and
`DEPARTURES` (what differs from it). It loads no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline import registry
from pipeline.errors import ConfigError
from pipeline.rl.explain import PLAIN, Setting, explain
from pipeline.rl.parts import Kl, KlForm, Masks, Mismatch, Parts, Reference, Shaping, Terms, Updates


class AlgorithmParams(BaseModel):
    """Frozen; unknown keys are refused. Defaults live in the subclass and nowhere else."""

    model_config = ConfigDict(extra="forbid", frozen=True)


KlIn = Annotated[Literal["none", "loss", "reward"], Field(description="where the KL to the reference enters")]
KlFormName = Annotated[KlForm, Field(description="estimator of that KL")]
KlCoef = Annotated[float, Field(ge=0, description="coefficient of the KL; 0 holds no reference")]
ReferenceName = Annotated[Reference, Field(description="when the reference moves, unless the recipe says otherwise")]
Std = Annotated[Literal["group", "batch", "leave_one_out", "none"], Field(description="what rewards are divided by")]
Baseline = Annotated[Literal["mean", "leave_one_out"], Field(description="of the whole group or of its others")]
Ddof = Annotated[int, Field(ge=0, le=1, description="1: sample standard deviation, 0: population's")]
Eps = Annotated[float, Field(ge=0, description="added to the standard deviation")]
Gamma = Annotated[float, Field(ge=0, le=1, description="discount per token")]
ClipLow = Annotated[float, Field(gt=0, le=1, description="a ratio below 1 - clip_low stops pushing down")]
ClipHigh = Annotated[float, Field(gt=0, description="a ratio above 1 + clip_high stops pushing up")]
Buffer = Annotated[
    float | None, Field(gt=0, le=1, description="soft overlong penalty over this last share of the longest response")
]
RewardClip = Annotated[float | None, Field(gt=0, description="rewards are clamped to plus or minus this")]
Delta = Annotated[
    float | None, Field(ge=0, description="drop responses with A < 0 whose mean log(pi_gen / pi) is above this")
]
KeepRouting = Annotated[bool, Field(description="replay the experts used while sampling (mixture of experts)")]
KeepSampling = Annotated[bool, Field(description="cut off in training what top-p or top-k cut off while sampling")]
NumMinibatches = Annotated[int, Field(ge=1, description="optimiser steps in each pass over a batch")]
Dynamic = Annotated[bool, Field(description="replace groups whose rewards are all equal")]


class PolicyParams(AlgorithmParams):
    """What every policy-gradient algorithm can be given besides its own numbers. All off; a preset turns on its own."""

    kl_in: KlIn = "none"
    kl_form: KlFormName = "k3"
    kl_coef: KlCoef = 0.0
    kl_target: float | None = Field(None, gt=0, description="adapt the coefficient towards this KL")
    kl_horizon: float | None = Field(None, gt=0, description="responses over which it adapts")
    reference: ReferenceName = "frozen"
    overlong_filter: bool = Field(False, description="truncated responses train nothing")
    overlong_buffer: Buffer = None
    overlong_factor: float = Field(1.0, ge=0, description="size of the soft overlong penalty at the limit")
    token_budget: int | None = Field(None, ge=1, description="responses longer than this are penalised")
    token_budget_penalty: float = Field(0.0, ge=0, description="what they lose")
    reward_clip: RewardClip = None
    off_policy_delta: Delta = None
    high_entropy_share: float | None = Field(
        None, gt=0, le=1, description="train only on this share of tokens, of highest entropy"
    )
    keep_routing: KeepRouting = False
    keep_sampling: KeepSampling = False
    mismatch_level: Literal["none", "token", "sequence", "geometric"] = Field(
        "none", description="weights pi_old / pi_gen against engine mismatch"
    )
    mismatch_action: Literal["truncate", "mask"] = Field("truncate", description="what happens outside floor and cap")
    mismatch_cap: float = Field(2.0, gt=0, description="largest weight")
    mismatch_floor: float = Field(0.0, ge=0, description="smallest weight")
    entropy_coef: float = Field(0.0, description="entropy bonus, or where an adaptive one starts")
    entropy_target: float | None = Field(None, gt=0, description="adapt the bonus to hold this entropy, in nats")
    entropy_step: float = Field(0.0, ge=0, description="change of the adaptive bonus at each step")
    entropy_max: float = Field(0.0, ge=0, description="largest adaptive bonus")
    ptx_coef: float = Field(0.0, ge=0, description="weight of the log-likelihood of text from the SFT data")
    num_epochs: int = Field(1, ge=1, description="passes over each batch")
    num_minibatches: NumMinibatches = 1
    max_kl: float | None = Field(None, gt=0, description="stop a batch's updates once its policy moved this far (k3)")
    dynamic_sampling: Dynamic = False
    temperature_end: float | None = Field(None, gt=0, description="sampling temperature at the end of training")
    allow: tuple[str, ...] = Field((), description="unusual combinations that are meant")

    def rest(self) -> dict[str, Any]:
        """The fields of `Parts` that these parameters fill, by name. A preset's KL is dropped by `kl_coef: 0`.

        Raises: ConfigError if the KL is asked to enter somewhere, with coefficient 0.
        """
        if self.kl_coef == 0 and self.kl_in != "none" and "kl_in" in self.model_fields_set:
            raise ConfigError(f"kl_in is {self.kl_in!r} but kl_coef is 0; set kl_coef above 0, or kl_in to none")
        idle = self.kl_coef == 0 and "reference" not in self.model_fields_set
        return {
            "kl": Kl(
                form=self.kl_form,
                where=self.kl_in if self.kl_coef > 0 else "none",
                coef=self.kl_coef,
                target=self.kl_target,
                horizon=self.kl_horizon,
            ),
            "masks": Masks(
                overlong_filter=self.overlong_filter,
                off_policy_delta=self.off_policy_delta,
                high_entropy_share=self.high_entropy_share,
                keep_routing=self.keep_routing,
                keep_sampling=self.keep_sampling,
            ),
            "mismatch": Mismatch(
                level=self.mismatch_level,
                action=self.mismatch_action,
                cap=self.mismatch_cap,
                floor=self.mismatch_floor,
            ),
            "shaping": Shaping(
                overlong_buffer=self.overlong_buffer,
                overlong_factor=self.overlong_factor,
                token_budget=self.token_budget,
                token_budget_penalty=self.token_budget_penalty,
                reward_clip=self.reward_clip,
            ),
            "terms": Terms(
                entropy_coef=self.entropy_coef,
                entropy_target=self.entropy_target,
                entropy_step=self.entropy_step,
                entropy_max=self.entropy_max,
                ptx_coef=self.ptx_coef,
            ),
            "updates": Updates(num_epochs=self.num_epochs, num_minibatches=self.num_minibatches, max_kl=self.max_kl),
            "dynamic_sampling": self.dynamic_sampling,
            "reference": "frozen" if idle else self.reference,
            "temperature_end": self.temperature_end,
            "allow": frozenset(self.allow),
        }


def load_algorithm(name: str, params: Mapping[str, Any] | None = None) -> tuple[AlgorithmParams, Parts]:
    """The validated parameters of the algorithm `name`, and its parts.

    Raises: UnknownName with the near ones; ConfigError for an unknown or wrong parameter, for parts that make no sense
    together, or for a plug-in without `Params` and `parts`.
    """
    module = registry.find("algorithms", name)
    params_type, choose = getattr(module, "Params", None), getattr(module, "parts", None)
    if not (isinstance(params_type, type) and issubclass(params_type, AlgorithmParams) and callable(choose)):
        raise ConfigError(f"algorithm {name!r} must have a class Params(AlgorithmParams) and a function parts(params)")
    try:
        checked = params_type.model_validate(dict(params or {}))
    except ValidationError as exc:
        said = registry.refused_parameters(exc.errors(), list(params_type.model_fields))
        raise ConfigError(f"algorithm {name!r}: {said}") from exc
    try:
        found = choose(checked)
    except ConfigError as exc:
        raise ConfigError(f"algorithm {name!r}: {exc}") from exc
    if not isinstance(found, Parts):
        raise ConfigError(f"algorithm {name!r}: parts() must return Parts, got {type(found).__name__}")
    return checked, found


def weighted(parts: Parts, weights: tuple[float, ...]) -> Parts:
    """The parts with the recipe's weights of reward components, where they take some and name none themselves."""
    if not parts.needs_components or not weights or parts.advantage.options.get("weights") is not None:
        return parts
    return replace(parts, advantage=replace(parts.advantage, options={**parts.advantage.options, "weights": weights}))


def explain_algorithm(
    name: str,
    params: Mapping[str, Any] | None = None,
    *,
    max_response_tokens: int,
    setting: Setting = PLAIN,
    weights: tuple[float, ...] = (),
) -> str:
    """The page of `explain` for the algorithm `name` in a recipe of that longest response and those reward weights.

    What departs is what the file declares, and every parameter that is not the preset's own.

    Raises: as `load_algorithm`.
    """
    module = registry.find("algorithms", name)
    checked, found = load_algorithm(name, params)
    changed = []
    for key in sorted(checked.model_fields_set - {"allow"}):
        field = type(checked).model_fields[key]
        if not field.is_required() and (value := getattr(checked, key)) != field.default:
            changed.append(f"{key} is {value!r}, the preset has {field.default!r}")
    return explain(
        weighted(found, weights).resolve(max_response_tokens),
        name=name,
        source=getattr(module, "SOURCE", ""),
        departures=[*getattr(module, "DEPARTURES", ()), *changed],
        setting=setting,
    )
