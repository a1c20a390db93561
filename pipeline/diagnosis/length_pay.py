"""Find what a reward pays for length, by its exact values: a reward by the character or the word shows itself.

Of two responses of a group with the same verdict, the rewards then differ by a fixed number for each character. Taken
off, few values are left, those of the verdicts, where before there were about as many as lengths.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verizero.pipeline.diagnosis.run_facts import RunFacts, by_group
from verizero.pipeline.report.row_types import RolloutRow

MIN_RESPONSES, MAX_RESPONSES, MAX_PAIRED = 50, 4000, 32
"""Responses of a run, and of a group those that are compared in pairs."""
MOST, MAX_VALUES, FEWER = 0.98, 4, 3
"""Share of the responses that few values hold, how many these may be, and by how much more the rewards have to be."""
UNITS: tuple[Callable[[RolloutRow], int], ...] = (lambda row: row.length, lambda row: len(row.response.split()))
WORD = "word"


@dataclass(frozen=True, slots=True)
class LengthPay:
    """Reward for length, next to that for all else."""

    unit: str
    """Character, token or word."""
    rate: float
    """Reward of a unit; negative: it costs."""
    rest: float
    """Highest less lowest reward of most responses without what their length brings: what all else can pay."""
    mean_length: float
    longest: int


def length_pay(run: RunFacts) -> LengthPay | None:
    """Return what the reward pays for length; None if it does not, or not by a fixed number."""
    samples = [s for s in run.samples[:MAX_RESPONSES] if s.row.reward is not None]
    if len(samples) < MIN_RESPONSES:
        return None
    groups = [[s.row for s in g] for g in by_group(samples)]
    rows = [row for group in groups for row in group]
    values = len(_most([_reward(row) for row in rows]))
    for length_of in UNITS:
        pairs = (pair for g in groups for pair in itertools.combinations(g[:MAX_PAIRED], 2))
        ratios = [
            (_reward(a) - _reward(b)) / (length_of(a) - length_of(b))
            for a, b in pairs
            if length_of(a) != length_of(b) and _reward(a) != _reward(b)
        ]
        if not ratios:
            continue
        usual = Counter(f"{ratio:.4g}" for ratio in ratios).most_common(1)[0][0]
        rate = statistics.median(ratio for ratio in ratios if f"{ratio:.4g}" == usual)
        lengths = [length_of(row) for row in rows]
        left = _most([_reward(row) - rate * n for row, n in zip(rows, lengths, strict=True)])
        if len(left) <= MAX_VALUES and FEWER * len(left) <= values:
            unit = WORD if length_of is UNITS[1] else _unit(rows)
            return LengthPay(unit, rate, max(left) - min(left), sum(lengths) / len(lengths), max(lengths))
    return None


def _unit(rows: Sequence[RolloutRow]) -> str:
    """Return what the lengths of rows count: tokens in runs of this project, and characters in logs of others."""
    return "character" if all(row.length == len(row.response) for row in rows) else "token"


def _reward(row: RolloutRow) -> float:
    return row.reward if row.reward is not None else 0.0


def _most(values: Sequence[float]) -> list[float]:
    """Return the most frequent values, which `MOST` of all are."""
    frequent: list[float] = []
    seen = 0
    for value, times in Counter(round(v, 4) for v in values).most_common():
        if seen >= MOST * len(values):
            break
        frequent.append(value)
        seen += times
    return frequent
