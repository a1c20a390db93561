"""Audit of a reward function in the form of any trainer, on the rows of a data set: without labels, in half a minute.

Each row's own answer is written in several forms, and so is the answer of another row. A function that fails, waits,
always says the same, refuses every form of the right answer, or pays for a wrong one shows it here before a run does.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verizero.pipeline.commands.verifiers.labelled_rows import Row, key_of, score_all
from verizero.pipeline.commands.verifiers.proof import Report, audit
from verizero.pipeline.errors import DataError
from verizero.pipeline.host.disk import numbered_jsonl
from verizero.pipeline.types import Verdict

MAX_ROWS, TIME_S = 24, 5.0
"""Rows that are tried, and seconds that a call may take."""
SLOW_S = 0.5
"""Seconds of a call that hold a batch of a thousand responses up for minutes."""
ANSWERS = ("answer", "reference", "ground_truth", "solution", "label", "labels", "target")
QUESTIONS = ("prompt", "question", "problem", "query", "instruction", "input")
FORMS = {
    "the answer alone": "{answer}",
    "in a box": r"It follows that \boxed{{{answer}}}",
    "in tags": "<think>First I look at it.</think><answer>{answer}</answer>",
    "after ####": "I work it out.\n#### {answer}",
    "in a sentence": "The answer is {answer}.",
}


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean reward of those calls that gave one. A call that failed is no zero: it is left out."""

    value: float | None
    """None if no call gave a reward."""
    num_graded: int
    num_calls: int

    def __str__(self) -> str:
        """Return the mean, and the number of calls that it is of where others gave no reward."""
        value = "-" if self.value is None else f"{self.value:.2f}"
        return value if self.num_graded == self.num_calls else f"{value} ({self.num_graded} of {self.num_calls})"


@dataclass(frozen=True, slots=True)
class RewardReport:
    """The findings about a reward function; `problems` are sentences, empty if it passed."""

    problems: tuple[str, ...]
    rewards: dict[str, tuple[Mean, Mean]]
    """Form -> mean reward of right answers in it, and of wrong ones."""
    seconds: float
    """Seconds of a call."""
    holes: Report | None = None
    """Rewritings and attacks in the form that is accepted; None if no form is."""

    @property
    def passed(self) -> bool:
        """True if there is no problem, and no rewriting or attack changes a verdict."""
        return not self.problems and (self.holes is None or self.holes.passed)

    def __str__(self) -> str:
        """Return the report for a terminal."""
        width = max((len(str(right)) for right, _ in self.rewards.values()), default=0)
        lines = [f"{self.seconds * 1000:.1f} ms a call", f"mean reward of answers    {'right':<{width}}  wrong"]
        lines += [f"  {name:<24}{right!s:<{width}}  {wrong}" for name, (right, wrong) in self.rewards.items()]
        lines += [f"PROBLEM  {problem}" for problem in self.problems]
        return "\n".join([*lines, *([str(self.holes)] if self.holes is not None else [])])


def audit_reward(path: str, data: Path, base: Path | None = None) -> RewardReport:
    """Try the function at `path`, "file.py:function", on rows of `data`, a JSONL file with questions and answers.

    Raises: DataError if the rows have no answer, ConfigError if the function cannot be loaded.
    """
    key = key_of(path, base or Path.cwd())
    rows = [
        _row(i, columns, key) for i, (_, columns) in zip(range(1, MAX_ROWS + 1), numbered_jsonl(data), strict=False)
    ]
    if not rows:
        raise DataError(f"{data}: holds no rows; give a JSONL file with a question and an answer in each line")
    begun = time.monotonic()
    (first,) = score_all([key], [rows[0].attempt(FORMS["the answer alone"].format(answer=rows[0].reference))], TIME_S)
    if first.status == "timeout" or (first.is_infrastructure and time.monotonic() - begun >= TIME_S):
        return RewardReport((f"a call does not end within {TIME_S:g} seconds; nothing else was tried",), {}, TIME_S)
    begun = time.monotonic()
    verdicts = {form: _of_form(rows, text) for form, text in FORMS.items()}
    every = [v for right, wrong in verdicts.values() for v in (*right, *wrong)]
    seconds = (time.monotonic() - begun) / len(every)
    rewards = {form: (_mean(right), _mean(wrong)) for form, (right, wrong) in verdicts.items()}
    best = max(rewards, key=lambda form: _gap(rewards[form]))
    problems = _problems(every, rewards, best, seconds)
    accepted = [
        replace(row, accept=(FORMS[best].format(answer=row.reference),), refuse=(FORMS[best].format(answer=other),))
        for row, other, verdict in zip(rows, _others(rows), verdicts[best][0], strict=True)
        if verdict.is_correct
    ]
    return RewardReport(tuple(problems), rewards, seconds, audit(accepted) if accepted else None)


def _problems(
    every: Sequence[Verdict], rewards: Mapping[str, tuple[Mean, Mean]], best: str, seconds: float
) -> list[str]:
    """Return what is wrong with the function, in sentences."""
    problems = []
    failed = Counter(v.reason for v in every if v.is_infrastructure)
    late = sum(v.status == "timeout" for v in every)
    if failed:
        reason, _ = failed.most_common(1)[0]
        problems.append(f"{sum(failed.values())} of {len(every)} calls fail: {reason:.200}")
    if late:
        problems.append(f"{late} of {len(every)} calls take longer than {TIME_S:g} seconds")
    if seconds > SLOW_S and not late:
        problems.append(f"a call takes {seconds:.1f} seconds; a batch of 1000 responses waits {seconds * 1000:.0f}")
    values = _values(every)
    distinct = set(values)
    if len(distinct) == 1 and len(values) > 1:
        problems.append(f"every call gives {next(iter(distinct)):g}, to right and wrong answers in every form")
    elif -math.inf < _gap(rewards[best]) <= 0:
        problems.append("no form of the right answers earns more than the same form of wrong ones")
    paid = [name for name, means in rewards.items() if _gap(means) <= 0 and (means[1].value or 0.0) >= 0.5]
    if paid and len(distinct) > 1:
        problems.append(f"wrong answers earn as much as right ones {', '.join(paid)}")
    return problems


def _of_form(rows: Sequence[Row], text: str) -> tuple[list[Verdict], list[Verdict]]:
    """Return the verdicts on the rows' own answers in a form, and on those of other rows."""
    right = [row.attempt(text.format(answer=row.reference)) for row in rows]
    wrong = [row.attempt(text.format(answer=other)) for row, other in zip(rows, _others(rows), strict=True)]
    verdicts = score_all([row.key for row in (*rows, *rows)], [*right, *wrong], TIME_S)
    return verdicts[: len(rows)], verdicts[len(rows) :]


def _others(rows: Sequence[Row]) -> list[Any]:
    """Return for each row the answer of the next row that has another one."""
    answers = [row.reference for row in rows]
    return [
        next((a for a in (*answers[i + 1 :], *answers[:i]) if str(a) != str(own)), f"not {own}")
        for i, own in enumerate(answers)
    ]


def _row(line: int, columns: Mapping[str, Any], key: str) -> Row:
    nested = columns.get("reward_model")  # as verl's data has it
    known = {**columns, **nested} if isinstance(nested, Mapping) else columns
    answer = next((known[name] for name in ANSWERS if known.get(name) is not None), None)
    if answer is None:
        raise DataError(f"row {line} has none of the columns {', '.join(ANSWERS)}, which hold the answer; rename one")
    question = next((columns[name] for name in QUESTIONS if columns.get(name) is not None), "")
    if isinstance(question, list):  # messages
        question = str(question[-1].get("content", "")) if question and isinstance(question[-1], Mapping) else ""
    return Row(line, columns.get("id", line), key, str(answer), prompt=str(question), columns=columns)


def _values(verdicts: Sequence[Verdict]) -> list[float]:
    """Return the rewards of the calls that gave one: none of those that failed, waited or abstained."""
    graded = (v for v in verdicts if v.status in ("graded", "no_answer"))
    return [v.score if v.reward is None else v.reward for v in graded]


def _mean(verdicts: Sequence[Verdict]) -> Mean:
    values = _values(verdicts)
    return Mean(sum(values) / len(values) if values else None, len(values), len(verdicts))


def _gap(means: tuple[Mean, Mean]) -> float:
    """Return how much more right answers earn than wrong ones; -inf if one of the two is not known."""
    right, wrong = (mean.value for mean in means)
    return -math.inf if right is None or wrong is None else right - wrong
