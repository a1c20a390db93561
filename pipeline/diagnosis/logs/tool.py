"""A tool's names for numbers and options, and what a finding tells its user to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from verizero.pipeline.diagnosis.logs.logged import Logged


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the tool, and the field of a recipe that means the same."""

    field: str
    """For example rl.optimizer.learning_rate."""
    scale: float = 1.0
    """The recipe's number is the option's times this."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A trainer, its words, and the remedies in them."""

    name: str
    """As after --from."""
    title: str
    metrics: Mapping[str, str]
    """Its name of a number -> ours. Names before `prefixes` are taken off."""
    signs: tuple[str, ...]
    """Names of numbers that no other tool writes."""
    prefixes: tuple[str, ...] = ()
    options: Mapping[str, Option] = field(default_factory=dict)
    ratio_level: str = ""
    """Its option that is "sequence" where the ratios that are clipped are those of whole responses."""
    written: str = "{option}={value}"
    """The form in which a change of an option is written."""
    where: str = ""
    """The place that its options are written in."""
    remedies: Mapping[str, str] = field(default_factory=dict)
    """Cause -> what to do, where the rule's own remedy is no change of an option."""
    logs_if: Mapping[str, str] = field(default_factory=dict)
    """Our name of a number -> when this tool logs it."""
    derive: Callable[[dict[str, float], Logged], None] = lambda values, logged: None
    """Adds our numbers that follow from several of its own, to the numbers of a step."""

    def plain(self, name: str) -> str:
        """Return a number's name without its prefix."""
        return next((name.removeprefix(p) for p in self.prefixes if name.startswith(p)), name)

    def ours(self, name: str) -> str | None:
        """Return our name of a number; None if the rules do not read it."""
        return self.metrics.get(self.plain(name))

    def theirs(self, name: str) -> str:
        """Return the tool's name of a number of ours; ours if it has none."""
        return next((own for own, of_ours in self.metrics.items() if of_ours == name), name)
