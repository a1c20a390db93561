"""A finding: a cause, its confidence, the lines that show it, and a change that fixes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Level = Literal["note", "warning", "problem"]
LEVELS: tuple[Level, ...] = ("note", "warning", "problem")
PASS = "pass@1"
"""Metric of evidence that is an evaluation."""
RECIPE = "the recipe"
"""File of evidence that is a field of the recipe."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of a file, in words."""

    file: str
    line: int
    text: str
    metric: str = ""
    """Metric whose curve a page shows with it; empty: none."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.text}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a run, a recipe or a machine."""

    cause: str = field(default="", kw_only=True)
    """The name of a function under `@cause`, which fills it in, or of a check."""
    level: Level = field(default="problem", kw_only=True)
    """note: good to know; warning: it costs something; problem: the run does not learn, or learns something else."""
    confidence: float
    """From 0 to 1."""
    sentence: str
    """A sentence for a person who has not read the code."""
    evidence: tuple[Evidence, ...]
    remedy: str
    """A change of the recipe, as `--set` takes it, or what to look at."""
    explains: frozenset[str] = frozenset()
    """Causes that are only consequences of this one, if both are found; `@cause` adds those of the cause."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One check of a recipe or a machine."""

    name: str
    tried: bool
    result: str
    """A line for people: what was looked at, or the reason why nothing was."""
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        return f"  {self.name:<12} {'' if self.tried else 'not tried: '}{self.result}"


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, the most likely cause first. One that another explains comes after it, as a note.

    Of two that explain each other both stay.
    """
    explains = {f.cause: f.explains for f in reversed(findings)}
    explained = {c for f in findings for c in f.explains if f.cause not in explains.get(c, frozenset())}
    with_levels = [replace(f, level="note") if f.cause in explained else f for f in findings]
    return sorted(with_levels, key=lambda f: (-LEVELS.index(f.level), -f.confidence, f.cause))
