"""The result of one check before training: what it tried, or why it could not, and what it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.types import Prompt

T = TypeVar("T")
RECIPE = "the recipe"
"""File of evidence that is a field of the recipe."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One check.

    Example: Checked("references", True, "400 references of math were graded", ())
    """

    name: str
    tried: bool
    result: str
    """A line for people: the rows that were tried, or the reason why nothing was."""
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        return f"  {self.name:<12} {'' if self.tried else 'not tried: '}{self.result}"


def not_tried(name: str, reason: str) -> Checked:
    """Return a check that could not be made."""
    return Checked(name, False, reason)


def evidence_of(prompt: Prompt, places: dict[str, str], text: str) -> Evidence:
    """Return the row that a prompt was made of, as evidence. `places`: as `read_prompts` fills it."""
    return evidence_at(places[prompt.id], text)


def evidence_at(line: str, text: str) -> Evidence:
    """Return a row, named as in "train.jsonl line 3", as evidence."""
    label, _, number = line.rsplit(" ", 2)  # a label may have spaces of its own
    return Evidence(label, int(number), text)


def spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` of the items, evenly over the list: rows of a file are often sorted."""
    if len(items) <= most:
        return list(items)
    return [items[i * len(items) // most] for i in range(most)]
