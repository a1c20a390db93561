"""Entries of the catalog of parts: a named advantage or surrogate, what it needs and the options that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from verizero.pipeline.errors import ConfigError

OptionValue = float | int | bool | str | None | tuple[float, ...]
Function = str | Callable[..., Any]
"""A callable, or the text `module.name` of one in this package."""
INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a part: its default, its description, and the values that it may have.

    Values are numbers in [low, high] and above `above`, integers where `whole` is true; or one of `choices`; or true
    and false, where the default is one of these; or a list of numbers, where `many` is true. A default of None allows
    None too.
    """

    default: OptionValue
    description: str
    low: float = -INFINITY
    above: float | None = None
    high: float = INFINITY
    choices: tuple[str, ...] = ()
    many: bool = False
    whole: bool = False

    def check(self, where: str, value: OptionValue) -> None:
        """Raise ConfigError naming the option, the value and what is allowed, unless the value is allowed."""
        if value is None and self.default is None:
            return
        if not self._allows(value):
            raise ConfigError(f"{where} must be {self}, got {value!r}")

    def _allows(self, value: OptionValue) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(self.default, bool):
            return isinstance(value, bool)
        if self.many:
            return isinstance(value, tuple) and len(value) > 0 and all(isinstance(v, (int, float)) for v in value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):  # to Python a bool is an int
            return False
        if self.whole and not isinstance(value, int):
            return False
        return (self.above is None or value > self.above) and self.low <= value <= self.high

    def __str__(self) -> str:
        if self.choices:
            text = "one of " + ", ".join(self.choices)
        elif isinstance(self.default, bool):
            text = "true or false"
        elif self.many:
            text = "a list of numbers"
        else:
            bounds = [f"> {self.above:g}"] if self.above is not None else []
            bounds += [f">= {self.low:g}"] if self.low != -INFINITY else []
            bounds += [f"<= {self.high:g}"] if self.high != INFINITY else []
            text = " ".join(["a whole number" if self.whole else "a number", " and ".join(bounds)]).rstrip()
        return text + (", or null" if self.default is None else "")


@dataclass(frozen=True, slots=True)
class Entry:
    """A named part. `formula` has the option names in braces, and explanations after the first semicolon."""

    formula: str
    source: str
    function: Function
    options: Mapping[str, Option] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdvantageEntry(Entry):
    """A named advantage."""

    needs: frozenset[str] = frozenset()
    """Inputs besides rewards: "group", "critic", "greedy", "components", "score_norms"; and "no_negative" reward."""
    per_token: bool = False
    """The advantage may differ between the tokens of a response."""
    divides: bool = False
    """The advantage is divided, unless option `std` is "none", so that it is no longer in the reward's unit."""


Differences = Literal["token", "mean", "sum", "nothing"]
"""A log-ratio is log pi(y_t) - log pi_old(y_t) of one token, the mean or the sum of these over a response, or 0."""


@dataclass(frozen=True, slots=True)
class RatioEntry:
    """A named importance ratio: one of the catalog, or one of an algorithm from outside (`Parts.ratio`).

    `log_ratio(logprobs, old_logprobs, mask)` takes three [B, T], which are 0 outside the mask, and returns the ratio's
    logarithm: [B, T] if it is per token, [B, 1] if it is per response.
    """

    name: str
    formula: str
    log_ratio: Function
    per: Literal["token", "response"]
    of: Differences = "token"
    """By it rules judge the width of a clip. "nothing": the ratio is 1, without a gradient."""

    @property
    def is_one(self) -> bool:
        """The ratio is always 1: the batch is used once, on-policy."""
        return self.of == "nothing"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class SurrogateEntry(Entry):
    """A named surrogate."""

    of: tuple[Differences, ...] = ("token", "mean", "sum")
    """Ratios that the surrogate has a meaning with, by what they are of."""
    is_detached: bool = False
    """The ratio is a weight without a gradient, so `sequence_token`, with its gradient per token, makes no sense."""
    whole_response: bool = False
    """The surrogate has one value for the whole response."""
    checks_width: bool = False
    """The rules compare the width of the clip to the level of the ratio."""
    selects: Function | None = None
    """Function that selects tokens once for the whole batch, by covariance; None: the surrogate needs no selection."""
    tokens_without_gradient: Function | None = None
    """Function that returns the tokens [B, T] bool to which the surrogate gives no gradient, to be counted.

    None: a clip, which is counted by its range, or no such tokens.
    """

    def takes(self, ratio: RatioEntry) -> bool:
        """True if the surrogate has a meaning with the ratio."""
        return ratio.of in self.of and not (self.is_detached and ratio.per == "token" and ratio.of == "mean")


@dataclass(frozen=True, slots=True)
class CreditEntry(Entry):
    """A named credit by turn: how single turns enter the advantages of their tokens."""

    replaces: str | None = None
    """The advantage whose estimator the credit replaces; None: it adds to any advantage per response."""


def load(function: Function) -> Callable[..., Any]:
    """Return the callable that an entry names. Importing its module loads tensors."""
    if not isinstance(function, str):
        return function
    module, _, name = function.rpartition(".")
    loaded: Callable[..., Any] = getattr(import_module(f"verizero.pipeline.rl.{module}"), name)
    return loaded
