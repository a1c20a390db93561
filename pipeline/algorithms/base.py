"""Base of an algorithm's parameters, and the way from a recipe's `algorithm:` section to its parts.

An algorithm file has `class Params(AlgorithmParams)` and `parts(params) -> Parts`. It states `SOURCE` (the paper) and
`DEPARTURES` (the differences from it), and opens with its objective, in the notation of `verizero explain`: r is the
importance ratio, A the advantage, sg stops the gradient. It loads no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verizero.pipeline import registry
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl import catalog, rules
from verizero.pipeline.rl.explain import DEFAULT_SETTING, Setting, explain
from verizero.pipeline.rl.parts import (
    Kl,
    KlForm,
    KlPlace,
    Masks,
    Mismatch,
    MismatchAction,
    MismatchLevel,
    Part,
    Parts,
    Proximal,
    Reference,
    Shaping,
    StaleObjective,
    Terms,
    Updates,
)

Value = TypeVar("Value")
CATALOG_DEFAULT: Any = object()
BY_ROW = "an episode whose history was rewritten has a ratio for each of its rows, not one for all"
"""The departure of an algorithm with one ratio per response, where an episode has several rows."""


def one_update(steps: int) -> str:
    """Return the departure of an algorithm whose paper takes several optimiser steps on each batch."""
    return f"a batch is one optimiser step; the paper takes {steps} (num_minibatches), and clips from the second on"


class AlgorithmParams(BaseModel):
    """Frozen; unknown keys are refused. Defaults live in the subclass, or in the catalog for the options of a part."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def option(part: str, name: str, default: Any = CATALOG_DEFAULT, description: str = "") -> Any:
    """Return a field for an option of a catalog's part: its bounds, and its default and description unless given."""
    known = (catalog.ADVANTAGES | catalog.SURROGATES | catalog.CREDITS)[part].options[name]
    return Field(
        known.default if default is CATALOG_DEFAULT else default,
        description=description or known.description,
        gt=known.above,
        ge=known.low if known.low != -catalog.INFINITY else None,
        le=known.high if known.high != catalog.INFINITY else None,
    )


KlIn = Annotated[KlPlace, Field(description="where the KL to the reference enters")]
KlFormName = Annotated[KlForm, Field(description="estimator of that KL")]
KlCoef = Annotated[float, Field(ge=0, description="coefficient of the KL; 0 holds no reference")]
ReferenceName = Annotated[Reference, Field(description="when the reference moves, unless the recipe says otherwise")]
ClipLow = Annotated[float, option("clip", "clip_low")]
ClipHigh = Annotated[float, option("clip", "clip_high")]
Buffer = Annotated[
    float | None, Field(gt=0, le=1, description="soft overlong penalty over this last share of the longest response")
]
RewardClip = Annotated[float | None, Field(gt=0, description="rewards are clamped to plus or minus this")]
Delta = Annotated[
    float | None, Field(ge=0, description="drop responses with A < 0 whose mean log(pi_gen / pi) is above this")
]
KeepRouting = Annotated[bool, Field(description="replay the experts used while sampling (mixture of experts)")]
KeepSampling = Annotated[
    bool, Field(description="training cuts off the tokens that top-p or top-k cut off while sampling")
]
MismatchName = Annotated[MismatchLevel, Field(description="weights pi_old / pi_gen against engine mismatch")]
Cap = Annotated[float, Field(gt=0, description="largest weight")]
Reject = Annotated[
    dict[str, float | tuple[float, float]],
    Field(
        description="drop tokens or responses outside bounds, e.g. {mean_k3: 0.01, max_k2: 0.1, sum_k1: [-1, 1]}",
    ),
]
Stale = Annotated[
    StaleObjective,
    Field(
        description="rows of an older policy: ratio to pi_gen (bypass), or to pi at batch start, with weights against "
        "pi_gen (decoupled)",
    ),
]
NumMinibatches = Annotated[int, Field(ge=1, description="optimiser steps in each pass over a batch")]
Credit = Literal["outcome", "turns", "states", "process", "turn_gae"]
CreditName = Annotated[
    Credit,
    Field(
        description="a token answers for the outcome alone; for its turn's rewards too (turns), compared in equal "
        "states (states); for those of steps, normalised over the group (process); or GAE over turns (turn_gae)"
    ),
]
Dynamic = Annotated[bool, Field(description="replace groups whose rewards are all equal")]


class PolicyParams(AlgorithmParams):
    """Parameters that every policy-gradient algorithm takes. All are off; a preset turns on its own."""

    kl_in: KlIn = "none"
    kl_form: KlFormName = "k3"
    kl_coef: KlCoef = 0.0
    kl_cap: float | None = Field(
        None, gt=0, description="no token's k3 counts for more than this, and beyond it has no gradient; 10 is usual"
    )
    kl_target: float | None = Field(
        None,
        gt=0,
        description="KL per token, in nats, that the coefficient adapts to (arXiv:1909.08593's 6 is per response)",
    )
    kl_horizon: float | None = Field(None, gt=0, description="responses over which it adapts")
    reference: ReferenceName = "frozen"
    overlong_filter: bool = Field(False, description="truncated responses train nothing")
    overlong_counts: bool = Field(False, description="overlong_filter: they count in means over responses all the same")
    overlong_buffer: Buffer = None
    overlong_factor: float = Field(1.0, ge=0, description="size of the soft overlong penalty at the limit")
    token_budget: int | None = Field(None, ge=1, description="responses longer than this are penalised")
    token_budget_penalty: float = Field(0.0, ge=0, description="reward that a response beyond token_budget loses")
    reward_clip: RewardClip = None
    group_length_penalty: float = Field(
        0.0, ge=0, description="penalty on length: this x mean reward of the group x length / longest of the group"
    )
    off_policy_delta: Delta = None
    high_entropy_share: float | None = Field(
        None, gt=0, le=1, description="train only on this share of tokens, of highest entropy"
    )
    keep_routing: KeepRouting = False
    keep_sampling: KeepSampling = False
    mismatch_level: MismatchName = "none"
    mismatch_action: MismatchAction = Field(
        "truncate", description="a weight outside floor and cap: clamped, or its token dropped"
    )
    mismatch_cap: Cap = 2.0
    mismatch_floor: float = Field(0.0, ge=0, description="smallest weight")
    mismatch_normalize: bool = Field(False, description="divide the weights by their mean over the batch")
    mismatch_reject: Reject = {}
    mismatch_m2: float | None = Field(
        None,
        gt=0,
        description="drop the worst tokens until the mean square of log(pi_old / pi_gen) is below this: M2PO as AReaL "
        "has it; the paper's own has pi in place of pi_old",
    )
    mismatch_stale: Stale = "bypass"
    mismatch_prox: Proximal = Field(
        "recompute", description="pi at batch start, over several updates: a forward, or interpolated without one"
    )
    entropy_coef: float = Field(0.0, description="coefficient of the entropy bonus; an adaptive one starts here")
    entropy_target: float | None = Field(None, gt=0, description="the bonus adapts to hold this entropy, in nats")
    entropy_step: float = Field(0.0, ge=0, description="change of the adaptive bonus at each step")
    entropy_max: float = Field(0.0, ge=0, description="largest adaptive bonus")
    ptx_coef: float = Field(0.0, ge=0, description="weight of the log-likelihood of text from the SFT data")
    nll_coef: float = Field(
        0.0,
        ge=0,
        description="weight of the negative log-likelihood of right responses: reward above 0 before penalties",
    )
    num_epochs: int = Field(1, ge=1, description="passes over each batch")
    num_minibatches: NumMinibatches = 1
    max_kl: float | None = Field(
        None, gt=0, description="a batch's updates stop once the policy has moved this far (k3)"
    )
    dynamic_sampling: Dynamic = False
    temperature_end: float | None = Field(None, gt=0, description="sampling temperature at the end of training")
    credit: CreditName = "outcome"
    credit_coef: float = option("turns", "coef", description="credit: weight of the turns' part, or of their rewards")
    credit_outcome: float = option("turns", "outcome")
    credit_gamma: float = option("turns", "gamma", description="credit by turns or states: discount per turn")
    credit_std: Literal["none", "group"] = option("turns", "std")
    allow: tuple[str, ...] = Field((), description="names of unusual combinations to accept")

    def rest(self) -> dict[str, Any]:
        """Return the fields of `Parts` that these parameters fill, by name. `kl_coef: 0` drops a preset's KL.

        Raises: ConfigError if the KL is asked to enter somewhere, with coefficient 0.
        """
        if self.kl_coef == 0 and self.kl_in != "none" and "kl_in" in self.model_fields_set:
            raise ConfigError(f"kl_in is {self.kl_in!r} but kl_coef is 0; set kl_coef above 0, or kl_in to none")
        # A preset's own schedule goes with its KL; one that the recipe asks for stays, and the rules refuse it.
        idle = self.kl_coef == 0 and "reference" not in self.model_fields_set
        return {
            "kl": self._filled(Kl, "kl_", where=self.kl_in if self.kl_coef > 0 else "none"),
            "masks": self._filled(Masks),
            "mismatch": self._filled(Mismatch, "mismatch_", reject=self._criteria()),
            "shaping": self._filled(Shaping, credit=self._credit()),
            "terms": self._filled(Terms),
            "updates": self._filled(Updates),
            "dynamic_sampling": self.dynamic_sampling,
            "reference": "frozen" if idle else self.reference,
            "temperature_end": self.temperature_end,
            "allow": frozenset(self.allow),
        }

    def _credit(self) -> Part:
        """Return the credit with its numbers. Raises: ConfigError for a number that it does not take."""
        takes = catalog.CREDITS[self.credit].options
        for key in catalog.CREDITS["turns"].options:
            if key not in takes and f"credit_{key}" in self.model_fields_set:
                value = getattr(self, f"credit_{key}")
                raise ConfigError(f"credit_{key} is {value!r} but credit {self.credit!r} does not use it; leave it out")
        return Part.of(self.credit, self, **{key: getattr(self, f"credit_{key}") for key in takes})

    def _criteria(self) -> tuple[tuple[str, float, float], ...]:
        """Return the criteria of `mismatch_reject` with both bounds; one number b is [-b, b]."""
        bounds = self.mismatch_reject.items()
        return tuple((name, *(b if isinstance(b, tuple) else (-b, b))) for name, b in bounds)

    def _filled(self, kind: type[Value], prefix: str = "", **instead: Any) -> Value:
        """Return a `kind` whose fields are `instead`, or else the parameters of the same names behind `prefix`."""
        names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
        return kind(**{n: instead[n] if n in instead else getattr(self, prefix + n) for n in names})


class GroupNormParams(PolicyParams):
    """Parameters of the advantage that is normalised within each group."""

    std: Literal["group", "batch", "leave_one_out", "none"] = option("group_norm", "std")
    baseline: Literal["mean", "leave_one_out"] = option("group_norm", "baseline")
    ddof: int = option("group_norm", "ddof")
    eps: float = option("group_norm", "eps")

    def advantage(self) -> Part:
        """Return the group-normalised advantage with these numbers."""
        return Part.of("group_norm", self)


class ClipParams(PolicyParams):
    """Parameters of PPO's clip."""

    clip_low: float = option("clip", "clip_low")
    clip_high: float = option("clip", "clip_high")

    def clip(self) -> Part:
        """Return the clipped surrogate with these numbers."""
        return Part.of("clip", self)


def chosen(algorithm: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name or the path of the algorithm that a recipe chooses, and its parameters. Raises: ConfigError."""
    params = dict(algorithm)
    # null takes back what a recipe that is extended, or the section of a stage, has chosen
    named = [choice for key in ("name", "path") if (choice := params.pop(key, None)) is not None]
    if len(named) != 1 or not isinstance(named[0], str):
        raise ConfigError(
            "rl.algorithm needs a name or the path of a file, e.g. {name: grpo} or {path: my_algorithm.py}, got "
            f"{dict(algorithm)!r}"
        )
    return named[0], params


def load_algorithm(name: str, params: Mapping[str, Any] | None = None) -> tuple[AlgorithmParams, Parts]:
    """Return the validated parameters of the algorithm `name`, and its parts, which have passed `rules.check`.

    `name` may be the path of a file, which ends in .py.

    Raises: UnknownName with the near ones; ConfigError for an unknown or wrong parameter, for parts that make no sense
    together, or for a plug-in without `Params` and `parts`.
    """
    module = _module(name)
    params_type, choose = getattr(module, "Params", None), getattr(module, "parts", None)
    if not (isinstance(params_type, type) and issubclass(params_type, AlgorithmParams) and callable(choose)):
        raise ConfigError(f"algorithm {name!r} must have a class Params(AlgorithmParams) and a function parts(params)")
    try:
        checked = params_type.model_validate(dict(params or {}))
    except ValidationError as exc:
        reason = registry.refused_parameters(exc.errors(), list(params_type.model_fields))
        raise ConfigError(f"algorithm {name!r}: {reason}") from exc
    try:
        parts = choose(checked)
        if not isinstance(parts, Parts):
            raise ConfigError(f"parts() must return Parts, got {type(parts).__name__}")
        rules.check(parts)
    except ConfigError as exc:
        raise ConfigError(f"algorithm {name!r}: {exc}") from exc
    return checked, parts


def _module(name: str) -> Any:
    is_file = name.endswith(".py")
    return registry.import_file(Path(name), "algorithm") if is_file else registry.find("algorithms", name)


def weighted(parts: Parts, weights: tuple[float, ...]) -> Parts:
    """Return the parts with the recipe's weights of reward components, where they take some and name none themselves.

    Raises: ConfigError for weights that the advantage does not take.
    """
    if not parts.needs_components or not weights or parts.advantage.options.get("weights") is not None:
        return parts
    options = {**parts.advantage.options, "weights": weights}
    parts = replace(parts, advantage=replace(parts.advantage, options=options))
    rules.check(parts)
    return parts


def explain_algorithm(
    name: str,
    params: Mapping[str, Any] | None = None,
    *,
    max_response_tokens: int,
    setting: Setting = DEFAULT_SETTING,
    weights: tuple[float, ...] = (),
) -> str:
    """Return the page of `explain` for the algorithm `name` with the recipe's longest response and reward weights.

    Departures are those that the file declares, and every parameter that differs from the preset's default.

    Raises: as `load_algorithm`.
    """
    module = _module(name)
    checked, parts = load_algorithm(name, params)
    changed = []
    for key in sorted(checked.model_fields_set - {"allow"}):
        field = type(checked).model_fields[key]
        if not field.is_required() and (value := getattr(checked, key)) != field.default:
            changed.append(f"{key} is {value!r}, the preset has {field.default!r}")
    return explain(
        weighted(parts, weights).resolve(max_response_tokens),
        name=name,
        source=getattr(module, "SOURCE", ""),
        departures=[*getattr(module, "DEPARTURES", ()), *changed],
        setting=setting,
    )
