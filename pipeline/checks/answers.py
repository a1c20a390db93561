"""Compare the numbers that the responses of a group answer with. They check the verdicts."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

from verizero.pipeline.checks.run_facts import RunFacts, Sample, by_group
from verizero.pipeline.types import Attempt
from verizero.verifiers.answer import final_answer

MIN_GROUP = 4
AGREEING, CLEARLY_AGREEING = 0.5, 0.6
"""Shares of a group that a majority has, and a clear one."""
MIN_READ = 0.3
"""Share of responses with a number, below which answers are no numbers."""


def answer_of(sample: Sample) -> str | None:
    """Return the answer that the verifier read in a response, else the final answer."""
    row = sample.row
    return row.extracted if row.extracted is not None else final_answer(Attempt(row.response, None)).text


def number_of(text: str | None) -> float | None:
    """Return the number that a text is; None if it is none."""
    try:
        return None if text is None else float(text.replace(",", ""))
    except ValueError:
        return None


@dataclass(slots=True)
class GroupAnswers:
    """Groups of responses by their answers, which are numbers, and by which of them are accepted."""

    majorities: int
    """Groups of which half or more agree on an answer."""
    refused_majorities: list[Sample]
    """A response of each of these whose common answer is refused."""
    clear_majorities: int
    """Groups of which most agree on an answer, by `CLEARLY_AGREEING`."""
    unsolved_majorities: list[Sample]
    """A response with the common answer of each of these in which no response is right."""
    solved: float | None
    """Mean share of right responses in groups with any; None if no group has any."""
    accepted: int
    """Groups with an accepted answer."""
    differing: list[tuple[Sample, Sample]]
    """Two accepted responses of each of these in which they answer differently."""
    refused: int
    """Refused responses in groups with an accepted answer."""
    refused_equal: list[tuple[Sample, Sample]]
    """A refused and an accepted response of one group with the same answer, and other texts."""


def group_answers(run: RunFacts, domain: str | None = None) -> GroupAnswers | None:
    """Return the groups of the training responses, of one domain if it is named; None if most answer with no number."""
    samples = [s for s in run.samples if domain in (None, s.row.domain)]
    read = [(s, number_of(answer_of(s))) for s in samples if s.row.ending is None]
    if not read or sum(n is not None for _, n in read) < MIN_READ * len(read):
        return None
    numbers = {s.line: n for s, n in read if n is not None}
    answers, solved = GroupAnswers(0, [], 0, [], None, 0, [], 0, []), list[float]()
    for group in by_group(samples):
        own = [s for s in group if s.line in numbers]
        if len(group) < MIN_GROUP or not own:
            continue
        answer, times = Counter(numbers[s.line] for s in own).most_common(1)[0]
        common = [s for s in own if numbers[s.line] == answer]
        if times >= AGREEING * len(group):
            answers.majorities += 1
            if all(s.row.score == 0 for s in common):
                answers.refused_majorities.append(common[0])
        if times >= CLEARLY_AGREEING * len(group):
            answers.clear_majorities += 1
            if all(s.row.score == 0 for s in group):
                answers.unsolved_majorities.append(common[0])
        right = [s for s in own if s.row.score >= 1]
        if not right:
            continue
        answers.accepted += 1
        solved.append(len(right) / len(group))
        if other := next((s for s in right if numbers[s.line] != numbers[right[0].line]), None):
            answers.differing.append((right[0], other))
        wrong = [s for s in own if s.row.score == 0]
        answers.refused += len(wrong)
        for s in wrong:
            equal = next((r for r in right if numbers[r.line] == numbers[s.line]), None)
            if equal is not None and equal.row.response != s.row.response:
                answers.refused_equal.append((s, equal))
    answers.solved = statistics.fmean(solved) if solved else None
    return answers
