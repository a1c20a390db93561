"""`Parts`: the named choice of parts that an algorithm makes, with `PolicyParams`, its numbers. Loads no tensors.

A part is a name of `catalog.py`, or a callable with the signature of the functions that the catalog names; a ratio is a
name, or an entry like the catalog's. So one new file can bring a new surrogate, advantage or ratio. `rules.check`
refuses combinations that have no meaning; `load_algorithm` calls it for every recipe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.catalog import (
    ADVANTAGES,
    CREDITS,
    INFINITY,
    RATIOS,
    SURROGATES,
    AdvantageEntry,
    CreditEntry,
    Entry,
    OptionValue,
    RatioEntry,
    SurrogateEntry,
    load,
)

Aggregate = Literal[
    "sequence_mean_token_mean",
    "token_mean",
    "sequence_mean_token_sum_norm",
    "sequence_mean_token_sum",
    "sequence_mean",
]
KlForm = Literal["k1", "k2", "k3", "k3_unbiased", "k3_ratio", "k1_plus", "k3_plus"]
KlPlace = Literal["none", "loss", "reward"]
Reference = Literal["frozen", "every_round"]
"""The schedules that need no number of their own; a recipe can ask for others."""
MismatchLevel = Literal["none", "token", "sequence", "geometric"]
MismatchAction = Literal["truncate", "mask"]
StaleObjective = Literal["bypass", "decoupled"]


@dataclass(frozen=True, slots=True)
class Part:
    """A part and its numbers. Example: Part("clip", {"clip_low": 0.2, "clip_high": 0.28})"""

    name: str | Callable[..., Any]
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    """Inputs of a callable advantage besides rewards: "critic", "greedy", "components", "group", "score_norms"."""
    per_token: bool = False
    """A callable advantage gives [B, T] rather than [B]."""

    @classmethod
    def of(cls, name: str, numbers: object, **instead: OptionValue) -> Part:
        """Return the catalog's part `name`, its options taken from `instead`, or else from attributes of `numbers`."""
        options = (ADVANTAGES | SURROGATES | CREDITS)[name].options  # no name is in two of them
        return cls(name, {key: instead[key] if key in instead else getattr(numbers, key) for key in options})

    @property
    def label(self) -> str:
        """The name, or the callable's own."""
        return self.name if isinstance(self.name, str) else getattr(self.name, "__name__", repr(self.name))

    @property
    def entry(self) -> Entry | None:
        """The catalog's entry of the part; None for a callable."""
        return (ADVANTAGES | SURROGATES | CREDITS).get(self.name) if isinstance(self.name, str) else None

    @property
    def function(self) -> Callable[..., Any]:
        """The function that computes the part. Loads tensors."""
        return load(self.name if self.entry is None else self.entry.function)


CATALOG_DEFAULT: Any = object()


class AlgorithmParams(BaseModel):
    """Frozen; unknown keys are refused. Defaults live in the subclass, or in the catalog for the options of a part."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def option(part: str, name: str, default: Any = CATALOG_DEFAULT, description: str = "") -> Any:
    """Return a field for an option of a catalog's part: its bounds, and its default and description unless given."""
    known = (ADVANTAGES | SURROGATES | CREDITS)[part].options[name]
    return Field(
        known.default if default is CATALOG_DEFAULT else default,
        description=description or known.description,
        gt=known.above,
        ge=known.low if known.low != -INFINITY else None,
        le=known.high if known.high != INFINITY else None,
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
Credit = Literal["outcome", "turns", "process", "turn_gae"]
CreditName = Annotated[
    Credit,
    Field(
        description="a token answers for the outcome alone; for its turn's rewards too (turns); for those of steps, "
        "normalised over the group (process); or GAE over turns (turn_gae)"
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
    reference: ReferenceName = "frozen"
    overlong_filter: bool = Field(False, description="truncated responses train nothing")
    overlong_buffer: Buffer = None
    overlong_factor: float = Field(1.0, ge=0, description="size of the soft overlong penalty at the limit")
    reward_clip: RewardClip = None
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
    mismatch_reject: Reject = {}
    mismatch_stale: Stale = "bypass"
    entropy_coef: float = Field(0.0, description="coefficient of the entropy bonus")
    ptx_coef: float = Field(0.0, ge=0, description="weight of the log-likelihood of text from the SFT data")
    num_epochs: int = Field(1, ge=1, description="passes over each batch")
    num_minibatches: NumMinibatches = 1
    dynamic_sampling: Dynamic = False
    credit: CreditName = "outcome"
    credit_coef: float = option("turns", "coef", description="credit: weight of the turns' part, or of their rewards")
    credit_outcome: float = option("turns", "outcome")
    credit_gamma: float = option("turns", "gamma", description="credit by turns: discount per turn")
    credit_std: Literal["none", "group"] = option("turns", "std")
    allow: tuple[str, ...] = Field((), description="names of unusual combinations to accept")

    @property
    def kl_place(self) -> KlPlace:
        """The place where the KL enters: `kl_coef: 0` drops a preset's KL."""
        return self.kl_in if self.kl_coef > 0 else "none"

    @property
    def schedule(self) -> Reference:
        """The reference's schedule: a preset's own goes with its KL, and rules refuse the recipe's without one."""
        return "frozen" if self.kl_coef == 0 and "reference" not in self.model_fields_set else self.reference

    @property
    def criteria(self) -> tuple[tuple[str, float, float], ...]:
        """`mismatch_reject` as (name of `catalog.REJECTIONS`, lowest, highest); one number b is [-b, b]."""
        bounds = self.mismatch_reject.items()
        return tuple((name, *(b if isinstance(b, tuple) else (-b, b))) for name, b in bounds)

    @property
    def compares_engine(self) -> bool:
        """Log-probs as the engine reported them enter a weight or a choice of tokens, next to the trainer's own."""
        return self.mismatch_level != "none" or bool(self.mismatch_reject)

    def length_penalty(self, length: int, longest: int) -> float:
        """Return the soft overlong penalty <= 0 on a response of `length` tokens; `longest` is the recipe's limit.

        With cache = overlong_buffer * longest it is 0 up to `longest - cache` tokens, then linear to -overlong_factor
        at `longest`, and that much beyond.

        Source: arXiv:2503.14476 eq. 13.
        """
        if self.overlong_buffer is None:
            return 0.0
        cache = self.overlong_buffer * longest
        start = longest - cache
        return 0.0 if length <= start else self.overlong_factor * max(-1.0, (start - length) / cache)

    @property
    def num_updates(self) -> int:
        """The number of optimiser steps on each batch."""
        return self.num_epochs * self.num_minibatches

    def of_parts(
        self, advantage: Part, ratio: str | RatioEntry, surrogate: Part, aggregate: Aggregate, **more: Any
    ) -> Parts:
        """Return these parts with these parameters."""
        return Parts(advantage=advantage, ratio=ratio, surrogate=surrogate, aggregate=aggregate, params=self, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Critic:
    """The critic: its parameters, its loss and its warm-up."""

    shared: bool
    """A head on the policy's backbone; else a backbone of its own."""
    loss_coef: float
    clip: float | None
    warmup_steps: int
    """Steps in which only the critic learns."""
    learning_rate: float | None = None
    """None: the policy's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One policy-gradient objective, whole."""

    advantage: Part
    ratio: str | RatioEntry
    """A name of the catalog, or an entry of its own."""
    surrogate: Part
    aggregate: Aggregate
    norm_length: int | None = None
    """C of `sequence_mean_token_sum_norm`; None until `resolve` gives it the recipe's longest response."""
    critic: Critic | None = None
    params: PolicyParams = field(default_factory=PolicyParams)
    """All other choices and numbers."""

    @property
    def advantage_entry(self) -> AdvantageEntry | None:
        """The catalog's entry for the advantage; None for a callable."""
        return ADVANTAGES.get(self.advantage.name) if isinstance(self.advantage.name, str) else None

    @property
    def credit(self) -> Part:
        """The part of single turns in the advantage."""
        options = {key: getattr(self.params, f"credit_{key}") for key in self.credit_entry.options}
        return Part(self.params.credit, options)

    @property
    def credit_entry(self) -> CreditEntry:
        """The catalog's entry for the credit."""
        return CREDITS[self.params.credit]

    @property
    def credits_turns(self) -> bool:
        """Single turns enter the advantages, with their rewards and states."""
        return self.params.credit != "outcome"

    @property
    def leaves_out_outcome(self) -> bool:
        """The reward of the whole response enters no advantage, but those of its turns or steps."""
        return self.params.credit in ("turns", "process") and self.params.credit_outcome == 0

    @property
    def ratio_entry(self) -> RatioEntry:
        """The entry of the importance ratio."""
        return self.ratio if isinstance(self.ratio, RatioEntry) else RATIOS[self.ratio]

    @property
    def surrogate_entry(self) -> SurrogateEntry | None:
        """The catalog's entry for the surrogate; None for a callable."""
        return SURROGATES.get(self.surrogate.name) if isinstance(self.surrogate.name, str) else None

    @property
    def needs(self) -> frozenset[str]:
        """All inputs of the advantage besides rewards."""
        entry = self.advantage_entry
        return self.advantage.needs | (entry.needs if entry else frozenset())

    @property
    def needs_critic(self) -> bool:
        """Values enter the advantages."""
        return "critic" in self.needs

    @property
    def needs_greedy(self) -> bool:
        """The reward of one greedy response per prompt enters the advantages."""
        return "greedy" in self.needs

    @property
    def needs_components(self) -> bool:
        """The reward's components enter the advantages one by one."""
        return "components" in self.needs

    @property
    def needs_score_norms(self) -> bool:
        """The size of each token's gradient enters the advantages."""
        return "score_norms" in self.needs

    @property
    def needs_no_negative(self) -> bool:
        """True if a reward below 0 makes no sense for the advantage: it divides by their mean."""
        return "no_negative" in self.needs

    @property
    def needs_group(self) -> bool:
        """The advantage compares responses to one prompt, or their turns: groups of two or more."""
        return "group" in self.needs or (self.credits_turns and self.credit_entry.replaces is None)

    @property
    def token_advantage(self) -> bool:
        """The advantage may differ between tokens of a response."""
        entry = self.advantage_entry
        to_go = self.params.kl_place == "reward" and self.advantage.options.get("kl_credit") == "to_go"
        return self.credits_turns or self.advantage.per_token or to_go or (entry is not None and entry.per_token)

    @property
    def surrogate_selects(self) -> bool:
        """The surrogate treats some tokens apart, selected by covariance over the whole batch."""
        entry = self.surrogate_entry
        return entry is not None and entry.selects is not None

    @property
    def needs_selection(self) -> bool:
        """Tokens are selected once per batch and over the whole of it."""
        return self.params.high_entropy_share is not None or self.surrogate_selects

    @property
    def needs_reference(self) -> bool:
        """Reference log-probs enter the objective."""
        return self.params.kl_place != "none"

    @property
    def needs_rollout_logprobs(self) -> bool:
        """Log-probs as the engine reported them enter the objective."""
        return self.params.compares_engine or self.params.off_policy_delta is not None

    @property
    def needs_old_logprobs(self) -> bool:
        """The trainer's own log-probs at batch start enter the objective."""
        return (
            not self.ratio_entry.is_one
            or self.params.kl_form == "k3_unbiased"
            or self.params.kl_place == "reward"
            or self.params.compares_engine  # all compare pi_old and pi_gen
            or self.needs_selection  # made before the first update
        )

    @property
    def compares_to_start(self) -> bool:
        """Later optimiser steps of a batch compare to the trainer's own log-probs from before the first one."""
        return self.needs_old_logprobs and self.params.num_updates > 1

    @property
    def first_step_gives_old(self) -> bool:
        """The forward of the first optimiser step, which has the whole batch, gives later ones the old log-probs."""
        # Unless something reads the old log-probs before that step.
        is_read_earlier = self.params.kl_place == "reward" or self.needs_selection
        return self.compares_to_start and self.params.num_minibatches == 1 and not is_read_earlier

    @property
    def has_old_forward(self) -> bool:
        """The trainer's own log-probs at batch start take a forward of their own, before the first optimiser step."""
        is_compared = self.compares_to_start and not self.first_step_gives_old
        return is_compared or self.params.kl_place == "reward" or self.needs_selection

    def with_params(self, **changes: Any) -> Parts:
        """Return these parts with other parameters."""
        return dataclasses.replace(self, params=self.params.model_copy(update=changes))

    def resolve(self, max_response_tokens: int) -> Parts:
        """Return these parts with the numbers of the longest response. Raises: ConfigError if it is not positive."""
        if max_response_tokens < 1:
            raise ConfigError(f"max_response_tokens must be >= 1, got {max_response_tokens}")
        if self.aggregate != "sequence_mean_token_sum_norm" or self.norm_length is not None:
            return self
        return dataclasses.replace(self, norm_length=max_response_tokens)
