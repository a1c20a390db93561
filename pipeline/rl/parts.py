"""`Parts`: the named choice of parts that an algorithm makes. Loads no tensors.

A part is a name of `catalog.py`, or a callable with the signature of the functions that the catalog names; a ratio is a
name, or an entry like the catalog's. So one new file can bring a new surrogate, advantage or ratio. `rules.check`
refuses combinations that have no meaning; `load_algorithm` calls it for every recipe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.catalog import (
    ADVANTAGES,
    CREDITS,
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
    "prompt_mean",
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
Proximal = Literal["recompute", "loglinear", "linear"]


@dataclass(frozen=True, slots=True)
class Part:
    """A part and its numbers.

    Example: Part("clip", {"clip_low": 0.2, "clip_high": 0.28})
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kl:
    """The KL to the reference: its form, where it enters, how strongly. `target` makes the coefficient adaptive."""

    form: KlForm = "k3"
    where: KlPlace = "none"
    coef: float = 0.0
    target: float | None = None
    horizon: float | None = None
    cap: float | None = None
    """No token's estimate counts for more than this, and beyond it has no gradient; for the forms of k3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Masks:
    """Tokens and responses that the policy loss leaves out. All off by default."""

    overlong_filter: bool = False
    """Truncated responses train nothing."""
    overlong_counts: bool = False
    """They count in means over responses all the same."""
    off_policy_delta: float | None = None
    """Responses with A < 0 are dropped if their mean log(pi_gen / pi) is above this."""
    high_entropy_share: float | None = None
    """Only this share of tokens trains, those of highest entropy."""
    keep_routing: bool = False
    """Mixture of experts: training replays the router's choices made while sampling."""
    keep_sampling: bool = False
    """Tokens that top-p or top-k cut off while sampling are cut off in training too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Correction for rows that another distribution sampled: another engine's, or an older policy's.

    The weights are pi_old / pi_gen: `truncate` clamps one to [floor, cap], `mask` drops it outside. At level `sequence`
    it is the product over the response, at `geometric` that product's length-th root.
    """

    level: MismatchLevel = "none"
    action: MismatchAction = "truncate"
    cap: float = 2.0
    floor: float = 0.0
    normalize: bool = False
    """Weights are divided by their mean over the batch."""
    reject: tuple[tuple[str, float, float], ...] = ()
    """(name of `catalog.REJECTIONS`, lowest, highest): tokens or responses outside are dropped."""
    m2: float | None = None
    """The tokens with the largest (log pi_old - log pi_gen)^2 are dropped until the mean of the rest is below this."""
    stale: StaleObjective = "bypass"
    """Objective on rows of an older policy."""
    prox: Proximal = "recompute"
    """Source of the decoupled objective's pi_old where a batch is used for several updates."""

    @property
    def needs_rollout_logprobs(self) -> bool:
        """Log-probs as the engine reported them enter a weight or a choice of tokens."""
        return self.level != "none" or bool(self.reject) or self.m2 is not None

    @property
    def needs_whole_batch(self) -> bool:
        """Something is computed over the whole batch before its first update."""
        return self.normalize or self.m2 is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """Changes to rewards before advantages are computed, and the credit of single turns. All off by default."""

    overlong_buffer: float | None = None
    """Soft overlong penalty over the last share of the length limit."""
    overlong_factor: float = 1.0
    token_budget: int | None = None
    """Responses longer than this many tokens lose `token_budget_penalty`."""
    token_budget_penalty: float = 0.0
    reward_clip: float | None = None
    """Rewards are clamped to [-reward_clip, reward_clip]."""
    group_length_penalty: float = 0.0
    """Rewards fall by this, times the group's mean reward, times the length as a share of the group's longest."""
    credit: Part = Part("outcome")
    """The part of single turns in the advantage, for episodes of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms added to the policy loss. All off by default."""

    entropy_coef: float = 0.0
    entropy_target: float | None = None
    """With a target the coefficient is adaptive and starts at `entropy_coef`."""
    entropy_step: float = 0.0
    entropy_max: float = 0.0
    ptx_coef: float = 0.0
    nll_coef: float = 0.0
    """Weight of the negative log-likelihood of right responses, a mean over their tokens."""


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
class Updates:
    """Number of times that one batch is used."""

    num_epochs: int = 1
    num_minibatches: int = 1
    max_kl: float | None = None
    """No further minibatch once the mean k3 of old to current policy is above this."""


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
    kl: Kl = Kl()
    masks: Masks = Masks()
    mismatch: Mismatch = Mismatch()
    shaping: Shaping = Shaping()
    terms: Terms = Terms()
    critic: Critic | None = None
    updates: Updates = Updates()
    dynamic_sampling: bool = False
    """Groups without a difference in reward are replaced by new prompts."""
    reference: Reference = "frozen"
    temperature_end: float | None = None
    """Sampling temperature at the end of training, reached linearly."""
    allow: frozenset[str] = frozenset()
    """Names of unusual combinations that the user asks for."""

    @property
    def advantage_entry(self) -> AdvantageEntry | None:
        """The catalog's entry for the advantage; None for a callable."""
        return ADVANTAGES.get(self.advantage.name) if isinstance(self.advantage.name, str) else None

    @property
    def credit(self) -> Part:
        """The part of single turns in the advantage."""
        return self.shaping.credit

    @property
    def credit_entry(self) -> CreditEntry | None:
        """The catalog's entry for the credit; None for a callable."""
        return CREDITS.get(self.credit.name) if isinstance(self.credit.name, str) else None

    @property
    def credits_turns(self) -> bool:
        """Single turns enter the advantages, with their rewards and states."""
        return self.credit.name != "outcome"

    @property
    def leaves_out_outcome(self) -> bool:
        """The reward of the whole response enters no advantage, but those of its turns or steps."""
        return self.credit.name in ("turns", "process") and self.credit.options["outcome"] == 0

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
        entry = self.credit_entry
        compares_turns = self.credits_turns and (entry is None or entry.replaces is None)
        return "group" in self.needs or compares_turns

    @property
    def token_advantage(self) -> bool:
        """The advantage may differ between tokens of a response."""
        entry = self.advantage_entry
        to_go = self.kl.where == "reward" and self.advantage.options.get("kl_credit") == "to_go"
        return self.credits_turns or self.advantage.per_token or to_go or (entry is not None and entry.per_token)

    @property
    def surrogate_selects(self) -> bool:
        """The surrogate treats some tokens apart, selected by covariance over the whole batch."""
        entry = self.surrogate_entry
        return entry is not None and entry.selects is not None

    @property
    def needs_selection(self) -> bool:
        """Tokens are selected once per batch, over the whole of it (`selection.select_tokens`)."""
        return self.masks.high_entropy_share is not None or self.surrogate_selects or self.mismatch.needs_whole_batch

    @property
    def needs_reference(self) -> bool:
        """Reference log-probs enter the objective."""
        return self.kl.where != "none"

    @property
    def needs_rollout_logprobs(self) -> bool:
        """Log-probs as the engine reported them enter the objective."""
        return self.mismatch.needs_rollout_logprobs or self.masks.off_policy_delta is not None

    @property
    def needs_old_logprobs(self) -> bool:
        """The trainer's own log-probs at batch start enter the objective."""
        return (
            not self.ratio_entry.is_one
            or self.kl.form == "k3_unbiased"
            or self.kl.where == "reward"
            or self.mismatch.needs_rollout_logprobs  # all compare pi_old and pi_gen
            or self.needs_selection  # made before the first update
        )

    @property
    def compares_to_start(self) -> bool:
        """Later optimiser steps of a batch compare to the trainer's own log-probs from before the first one."""
        several = self.updates.num_epochs * self.updates.num_minibatches > 1
        return self.needs_old_logprobs and several and self.mismatch.prox == "recompute"

    @property
    def first_step_gives_old(self) -> bool:
        """The forward of the first optimiser step, which has the whole batch, gives later ones the old log-probs."""
        # Unless something reads the old log-probs before that step.
        is_read_earlier = self.kl.where == "reward" or self.needs_selection or self.mismatch.normalize
        return self.compares_to_start and self.updates.num_minibatches == 1 and not is_read_earlier

    @property
    def has_old_forward(self) -> bool:
        """The trainer's own log-probs at batch start take a forward of their own, before the first optimiser step."""
        is_compared = self.compares_to_start and not self.first_step_gives_old
        return is_compared or self.kl.where == "reward" or self.needs_selection

    def resolve(self, max_response_tokens: int) -> Parts:
        """Return these parts with the numbers that depend on the longest response.

        Raises: ConfigError if `max_response_tokens` is not positive.
        """
        if max_response_tokens < 1:
            raise ConfigError(f"max_response_tokens must be >= 1, got {max_response_tokens}")
        if self.aggregate != "sequence_mean_token_sum_norm" or self.norm_length is not None:
            return self
        return dataclasses.replace(self, norm_length=max_response_tokens)
