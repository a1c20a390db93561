"""Compare what the responses of a group answer: numbers, choices, words or JSON. They check the verdicts."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from dataclasses import dataclass, field

from verizero.pipeline.checks.run_facts import RunFacts, Sample, by_group
from verizero.pipeline.host.disk import parse_json
from verizero.pipeline.types import Attempt
from verizero.verifiers.answer import final_answer, folded

MIN_GROUP = 4
AGREEING, CLEARLY_AGREEING = 0.5, 0.6
"""Shares of a group that a majority has, and a clear one."""
MIN_READ = 0.3
"""Share of responses with an answer of one kind, below which answers are not of it."""
MIN_OPEN = 30
"""Distinct answers of a run from which on two responses hardly agree by chance."""
CHOICE = re.compile(r"[a-j]|yes|no|true|false")
AROUND = " .,;:!?()[]\"'`*$"
"""Characters around an answer that do not count."""


def read_answer(sample: Sample) -> tuple[str, float | str] | None:
    """Return the kind of the answer that the verifier read in a response, else of the final answer, and its value.

    Programs and sentences have none: several may be right.
    """
    row = sample.row
    text = row.extracted if row.extracted is not None else final_answer(Attempt(row.response, None)).text
    if text is None:
        return None
    try:
        if math.isfinite(number := float(text.replace(",", ""))):
            return "number", number
    except ValueError:
        pass
    if text.lstrip().startswith(("{", "[")):
        try:
            return "JSON", json.dumps(parse_json(text), sort_keys=True)
        except (ValueError, RecursionError):
            return None
    word = folded(text).strip(AROUND)
    return ("choice" if CHOICE.fullmatch(word) else "word", word) if len(word.split()) == 1 else None


@dataclass(slots=True)
class GroupAnswers:
    """Groups of responses by their answers, all of one kind, and by which of them are accepted."""

    kind: str
    distinct: int
    """Different answers in the run."""
    share_accepted: float
    """Share of the responses with an answer that are right."""
    majorities: int = 0
    """Groups of which half or more agree on an answer."""
    refused_majorities: list[Sample] = field(default_factory=list)
    """A response of each of these whose common answer is refused."""
    clear_majorities: int = 0
    """Groups of which most agree on an answer, by `CLEARLY_AGREEING`."""
    unsolved_majorities: list[Sample] = field(default_factory=list)
    """A response with the common answer of each of these in which no response is right."""
    solved: float | None = None
    """Mean share of right responses in groups with any; None if no group has any."""
    accepted: int = 0
    """Groups with an accepted answer."""
    mixed: int = 0
    """Groups with an accepted answer and another one, accepted or not."""
    values: Counter[float | str] = field(default_factory=Counter)
    """Answer -> how many responses have it."""
    accepted_values: Counter[float | str] = field(default_factory=Counter)
    """The same of accepted responses."""
    differing: list[tuple[Sample, Sample]] = field(default_factory=list)
    """Two accepted responses of each of these in which they answer differently."""
    refused: int = 0
    """Refused responses in groups with an accepted answer."""
    refused_equal: list[tuple[Sample, Sample]] = field(default_factory=list)
    """A refused and an accepted response of one group with the same answer, and other texts."""


def group_answers(run: RunFacts, domain: str | None = None) -> GroupAnswers | None:
    """Return the groups of the training responses, of one domain if it is named; None if no kind of answer is usual."""
    samples = [s for s in run.samples if domain in (None, s.row.domain)]
    read = {s.line: read_answer(s) for s in samples if s.row.ending is None}
    kinds = Counter(answer[0] for answer in read.values() if answer is not None)
    least = max(1, MIN_READ * len(read))
    kind = "number" if kinds["number"] >= least else max(kinds, key=lambda own: kinds[own], default="number")
    if kinds[kind] < least:
        return None
    keys = {line: answer[1] for line, answer in read.items() if answer is not None and answer[0] == kind}
    accepted = [s.row.score >= 1 for s in samples if s.line in keys]
    answers, solved = GroupAnswers(kind, len(set(keys.values())), statistics.fmean(accepted)), list[float]()
    for group in by_group(samples):
        own = [s for s in group if s.line in keys]
        if len(group) < MIN_GROUP or not own:
            continue
        answer, times = Counter(keys[s.line] for s in own).most_common(1)[0]
        common = [s for s in own if keys[s.line] == answer]
        if times >= AGREEING * len(group):
            answers.majorities += 1
            if all(s.row.score == 0 for s in common):
                answers.refused_majorities.append(common[0])
        if times >= CLEARLY_AGREEING * len(group):
            answers.clear_majorities += 1
            if all(s.row.score == 0 for s in group):
                answers.unsolved_majorities.append(common[0])
        right = [s for s in own if s.row.score >= 1]
        answers.values.update(keys[s.line] for s in own)
        answers.accepted_values.update(keys[s.line] for s in right)
        if not right:
            continue
        answers.accepted += 1
        answers.mixed += times < len(own)
        solved.append(len(right) / len(group))
        if other := next((s for s in right if keys[s.line] != keys[right[0].line]), None):
            answers.differing.append((right[0], other))
        wrong = [s for s in own if s.row.score == 0]
        answers.refused += len(wrong)
        for s in wrong:
            equal = next((r for r in right if keys[r.line] == keys[s.line]), None)
            if equal is not None and equal.row.response != s.row.response:
                answers.refused_equal.append((s, equal))
    answers.solved = statistics.fmean(solved) if solved else None
    return answers
