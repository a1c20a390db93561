"""The causes for which a run does not learn: each is a function that looks for it in the facts of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

from verizero.pipeline.checks.finding import Finding
from verizero.pipeline.checks.run_facts import RunFacts

Rule = Callable[[RunFacts], Finding | None]


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause, with the rules that look for it: the first that finds something counts."""

    name: str
    text: str
    """A description, which docs/diagnose.md has."""
    rules: tuple[Rule, ...]
    explains: frozenset[str]
    """Causes that are only consequences of it, if both are found."""
    needs: tuple[str, ...]
    """Numbers, one of which has to be logged; none: it is looked for in any run."""
    elsewhere: str
    """The remedy in words of no trainer."""

    def look(self, run: RunFacts) -> Finding | None:
        """Return what the rules find in a run."""
        finding = next((f for rule in self.rules if (f := rule(run)) is not None), None)
        if finding is None:
            return None
        return replace(finding, cause=self.name, explains=self.explains | finding.explains)

    def with_rule(self, rule: Rule) -> Cause:
        """Return the cause with one more rule, which is asked where those before it find nothing."""
        return replace(self, rules=(*self.rules, rule))


CAUSES: dict[str, Cause] = {}
"""All causes by name."""


def cause(elsewhere: str, explains: str = "", needs: str = "") -> Callable[[Rule], Rule]:
    """Make a rule the first of the cause that has its name, and its docstring as text; others as in `Cause`."""

    def add(rule: Rule) -> Rule:
        name, text = rule.__name__, inspect.getdoc(rule) or ""
        CAUSES[name] = Cause(name, text, (rule,), frozenset(explains.split()), tuple(needs.split()), elsewhere)
        return rule

    return add


def also(name: str) -> Callable[[Rule], Rule]:
    """Make a rule one more of a cause: it is asked where those before it find nothing."""

    def add(rule: Rule) -> Rule:
        CAUSES[name] = CAUSES[name].with_rule(rule)
        return rule

    return add
