"""Compare the numbers that responses of one group answer with: where no reference is known, they check the verdicts."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

from verizero.pipeline.diagnosis.answer_numbers import number_of
from verizero.pipeline.diagnosis.run_facts import RunFacts, Sample, by_group

MIN_GROUP = 4
MIN_AGREEING = 0.5
"""Share of a group that a majority has."""
CLEAR_AGREEING = 0.6
"""Share of a group that a clear majority has."""
MIN_READ = 0.3
"""Share of responses with a number, below which answers are no numbers."""


@dataclass(frozen=True, slots=True)
class GroupAnswers:
    """Groups of responses by their answers, which are numbers, and by which of them are accepted."""

    majorities: int
    """Groups of which half or more agree on an answer."""
    refused_majorities: tuple[Sample, ...]
    """A response of each of these whose common answer is refused."""
    clear_majorities: int
    """Groups of which most agree on an answer, by `CLEAR_AGREEING`."""
    unsolved_majorities: tuple[Sample, ...]
    """A response with the common answer of each of these in which no response is right."""
    solved: float | None
    """Mean share of right responses in groups with any; None if no group has any."""
    accepted: int
    """Groups with an accepted answer."""
    differing: tuple[tuple[Sample, Sample], ...]
    """Two accepted responses of each of these in which they answer differently."""
    refused: int
    """Refused responses in groups with an accepted answer."""
    refused_equal: tuple[tuple[Sample, Sample], ...]
    """A refused and an accepted response of one group with the same answer, and other texts."""


def group_answers(run: RunFacts) -> GroupAnswers | None:
    """Return the groups of the training responses; None if most responses answer with no number."""
    read = [(s, number_of(s.row.extracted)) for s in run.samples if s.row.ending is None]
    if not read or sum(n is not None for _, n in read) < MIN_READ * len(read):
        return None
    numbers = {s.line: n for s, n in read if n is not None}
    majorities = clear = accepted = refused = 0
    refused_majorities: list[Sample] = []
    unsolved: list[Sample] = []
    solved: list[float] = []
    differing: list[tuple[Sample, Sample]] = []
    refused_equal: list[tuple[Sample, Sample]] = []
    for group in by_group(run.samples):
        own = [s for s in group if s.line in numbers]
        if len(group) < MIN_GROUP or not own:
            continue
        answer, times = Counter(numbers[s.line] for s in own).most_common(1)[0]
        common = [s for s in own if numbers[s.line] == answer]
        if times >= MIN_AGREEING * len(group):
            majorities += 1
            if all(s.row.score == 0 for s in common):
                refused_majorities.append(common[0])
        if times >= CLEAR_AGREEING * len(group):
            clear += 1
            if all(s.row.score == 0 for s in group):
                unsolved.append(common[0])
        right = [s for s in own if s.row.score >= 1]
        if not right:
            continue
        accepted += 1
        solved.append(len(right) / len(group))
        if other := next((s for s in right if numbers[s.line] != numbers[right[0].line]), None):
            differing.append((right[0], other))
        wrong = [s for s in own if s.row.score == 0]
        refused += len(wrong)
        for s in wrong:
            equal = next((r for r in right if numbers[r.line] == numbers[s.line]), None)
            if equal is not None and equal.row.response != s.row.response:
                refused_equal.append((s, equal))
    return GroupAnswers(
        majorities,
        tuple(refused_majorities),
        clear,
        tuple(unsolved),
        statistics.fmean(solved) if solved else None,
        accepted,
        tuple(differing),
        refused,
        tuple(refused_equal),
    )
