"""A finding of a diagnosis: a cause, its confidence, the lines that show it, and a change that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["note", "warning", "problem"]
PASS = "pass@1"
"""Metric of evidence that is an evaluation."""
LEVELS: tuple[Level, ...] = ("note", "warning", "problem")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of a file of the run, in words."""

    file: str
    line: int
    text: str
    metric: str = ""
    """Metric whose curve a page shows with it; empty: none."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.text}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause that was found in a run."""

    cause: str
    """The name of its file in pipeline/diagnosis."""
    level: Level
    """note: good to know; warning: it costs something; problem: the run does not learn, or learns something else."""
    confidence: float
    """From 0 to 1."""
    sentence: str
    """A sentence for a person who has not read the code."""
    evidence: tuple[Evidence, ...]
    remedy: str
    """A change of the recipe, as `--set` takes it, or what to look at."""
    explains: frozenset[str] = frozenset()
    """Causes that are only consequences of this one, if both are found."""
