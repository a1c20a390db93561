"""The result of a look at a run: a cause, how sure it is, the lines that show it, and the change that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["note", "warning", "problem"]
PASS = "pass@1"
"""The metric of evidence in evaluations."""
LEVELS: tuple[Level, ...] = ("note", "warning", "problem")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of a file of the run, and what it says."""

    file: str
    line: int
    text: str
    metric: str = ""
    """The number of a line of metrics.jsonl that it is about, whose curve a page shows; empty: none."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.text}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause that was found."""

    cause: str
    """The name of its file in pipeline/diagnosis."""
    level: Level
    """note: worth knowing; warning: it costs something; problem: the run does not learn, or not what it should."""
    confidence: float
    """From 0 to 1: how much of what the cause predicts was seen."""
    sentence: str
    """A sentence for a person who has not read the code."""
    evidence: tuple[Evidence, ...]
    remedy: str
    """A change of the recipe, as `--set` takes it, or what to look at."""
    explains: frozenset[str] = frozenset()
    """Causes that are only signs of this one where both are found."""
