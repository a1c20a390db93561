"""Check a verifier on labelled rows before it becomes a reward."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verizero.pipeline.commands.verifiers.labelled_rows import (
    Choice,
    Defaults,
    Row,
    bound,
    brief,
    choice_of,
    good_rows,
    key_of,
    score_all,
)  # fmt: skip
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.report.progress import Progress, Silent
from verizero.pipeline.types import Attempt, Verdict

EMPTY = {
    "empty": "",
    "spaces": " \n\t ",
    "empty box": r"\boxed{}",
    "empty tags": "<think></think><answer></answer>",
    "thinking alone": "<think>I cannot say.</think>",
    "unfinished thinking": "<think>It may be",
}
"""Responses without an answer: wrong for every reference."""
SHOWN = 6
"""Cases whose verdicts are shown, whatever they are."""
PATIENCE = 10
"""Times the seconds of a row after which it is ended, where that is possible."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One property of the verifier: true of all `checked` cases, or the cases that break it."""

    name: str
    passed: bool
    checked: int
    failures: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the finding for a terminal: one line, and one for each of the first failures."""
        shown = "".join(f"\n    {f}" for f in self.failures[:5])
        more = f"\n    and {len(self.failures) - 5} more" if len(self.failures) > 5 else ""
        return f"{'ok  ' if self.passed else 'FAIL'} {self.name} ({self.checked} checked){shown}{more}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All findings, and the verifier's speed: rows per second of wall time and of CPU time, and its slowest row."""

    verifier: str
    findings: tuple[Finding, ...]
    rows_per_s: float
    rows_per_cpu_s: float | None
    """None if another process grades."""
    slowest_s: float
    read: tuple[str, ...] = ()
    """The verdicts on some cases, and what was extracted from each."""

    @property
    def passed(self) -> bool:
        """True if every property holds."""
        return all(f.passed for f in self.findings)

    def __str__(self) -> str:
        """Return the report for a terminal."""
        cpu = "" if self.rows_per_cpu_s is None else f", {self.rows_per_cpu_s:,.0f} rows per CPU second in this process"
        lines = [f"verifier {self.verifier}", *(f.line() for f in self.findings)]
        lines.append("what was read, for example:")
        lines += [f"    {line}" for line in self.read]
        lines.append(f"speed: {self.rows_per_s:,.0f} rows/s{cpu}; slowest row {self.slowest_s * 1000:.1f} ms")
        return "\n".join([*lines, "all checks passed" if self.passed else "NOT FIT as a reward: see FAIL above"])


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    key: str
    """The verifier with its parameters."""
    attempt: Attempt
    right: bool


Ask = Callable[[Sequence[_Case]], list[Verdict]]
"""Grades cases together."""


def check(
    verifier: Choice,
    rows: Path | Sequence[Row],
    *,
    params: Mapping[str, Any] | None = None,
    time_s: float = 1.0,
    threads: int = 8,
    base: Path | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Check that `verifier` deserves to be a reward, with `params`, or where a row names it with others, with those.

    rows: {"reference", "prompt"?, and "accept": [responses] and "refuse": [near misses], or "response" with "label"};
    a "response" without a label counts as right. Checked: right responses are accepted, near misses and responses
    without an answer are refused, no row makes the grader fail, verdicts are the same a second time, in another order,
    one at a time and from `threads` threads, and each takes at most `time_s` seconds. Where the grader fails, the case
    is not asked again.
    The verifier's file may be in `base` (default: the working folder) or in the folder of the rows.
    Raises: DataError for invalid rows; ConfigError if no row has a right or a wrong answer; UnknownName.
    """
    folder = rows.parent if isinstance(rows, Path) else None
    defaults = Defaults(choice_of(verifier, params), base or Path.cwd(), folder)
    key = key_of(choice_of(verifier, params), defaults.base, folder)
    grader = bound(key)
    rows = good_rows(rows, defaults) if isinstance(rows, Path) else rows
    keyed = [(row, _key(row, key)) for row in rows]
    cases = [case for row, row_key in keyed for case in _cases(row, row_key)]
    for is_right, what in ((True, "right answer ('accept', or 'response')"), (False, "near miss ('refuse')")):
        if not any(c.right is is_right for c in cases):
            raise ConfigError(f"the rows hold no {what}; a verifier is checked against at least one of each")

    def ask(some: Sequence[_Case]) -> list[Verdict]:
        return score_all([c.key for c in some], [c.attempt for c in some], PATIENCE * time_s)

    ask(cases[:1])  # what a first call loads is no part of the speed
    wall, cpu = time.perf_counter(), time.process_time()
    together = ask(cases)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    again = _Again(ask, cases, together, progress or Silent())
    findings = [
        _labels("right answers are accepted", cases, together, True),
        _labels("near misses are refused", cases, together, False),
        _no_failures(cases, together),
    ]
    if again.cases:
        empties = [_Case(f"line {r.line}: {n}", k, r.attempt(e), False) for r, k in keyed for n, e in EMPTY.items()]
        findings.insert(2, _labels("answers without content are refused", empties, ask(empties), False))
        findings += [again.same(), again.same_from(threads)]
    seconds = [*again.seconds, *((c, v.seconds) for c, v in zip(cases, together, strict=True) if v.is_infrastructure)]
    findings.append(_in_time(seconds, time_s))
    cpu_speed = len(cases) / max(cpu, 1e-9) if grader.verifier.is_ours else None
    speeds = len(cases) / max(wall, 1e-9), cpu_speed, max(s for _, s in seconds)
    return CheckReport(grader.name, tuple(findings), *speeds, _read(cases, together))


def _key(row: Row, key: str) -> str:
    """Return the row's verifier with the row's own parameters, if it is the one that is checked; else that one."""
    of_row, checked = json.loads(row.key), json.loads(key)
    is_same = all(of_row.get(field) == checked.get(field) for field in ("name", "path"))
    return row.key if is_same and "params" in of_row else key


def _cases(row: Row, key: str) -> list[_Case]:
    cases = []
    if row.response is not None:
        cases.append(_Case(f"line {row.line}: {row.response!r:.80}", key, row.attempt(), row.label is not False))
    for right, responses in ((True, row.accept), (False, row.refuse)):
        cases += [_Case(f"line {row.line}: {r!r:.80}", key, row.attempt(r), right) for r in responses]
    return cases


def _read(cases: Sequence[_Case], verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return lines on the first right answers and the first near misses."""
    by_label = [[(c, v) for c, v in zip(cases, verdicts, strict=True) if c.right is right] for right in (True, False)]
    return tuple(f"{c.name}: {brief(v)}" for pairs in by_label for c, v in pairs[: SHOWN // 2])


class _Again:
    """Asks for the same verdicts in other ways, where there are any: a case that the grader failed on is left out."""

    def __init__(self, ask: Ask, cases: Sequence[_Case], verdicts: Sequence[Verdict], progress: Progress) -> None:
        pairs = [(c, v) for c, v in zip(cases, verdicts, strict=True) if not v.is_infrastructure]
        self.cases, self._verdicts = [c for c, _ in pairs], [v for _, v in pairs]
        self._ask, self._progress = ask, progress
        self.seconds: list[tuple[_Case, float]] = []
        """The seconds of each case that was asked about alone."""

    def _one_by_one(self) -> list[Verdict]:
        verdicts = []
        self._progress.begin("one at a time", 0, len(self.cases))
        for number, case in enumerate(self.cases, 1):
            start = time.perf_counter()
            verdicts += self._ask([case])
            self.seconds.append((case, time.perf_counter() - start))
            self._progress.advance(number, {})
        return verdicts

    def same(self) -> Finding:
        """Compare with verdicts of single calls, of a second time, and of another order; note the seconds."""
        alone = self._one_by_one()
        order = list(range(len(self.cases)))
        random.Random(0).shuffle(order)
        shuffled = dict(zip(order, self._ask([self.cases[i] for i in order]), strict=True))
        others = [alone, self._ask(self.cases), [shuffled[i] for i in range(len(self.cases))]]
        return _same("the same verdicts twice, shuffled and one at a time", self.cases, self._verdicts, others)

    def same_from(self, threads: int) -> Finding:
        """Compare with the verdicts that several threads get at a time."""
        with ThreadPoolExecutor(threads, "check") as pool:
            verdicts = [v for some in pool.map(lambda case: self._ask([case]), self.cases) for v in some]
        return _same(f"the same verdicts from {threads} threads", self.cases, self._verdicts, [verdicts])


def _labels(name: str, cases: Sequence[_Case], verdicts: Sequence[Verdict], right: bool) -> Finding:
    pairs = [(c, v) for c, v in zip(cases, verdicts, strict=True) if c.right is right]
    failures = tuple(f"{c.name}: {brief(v)}" for c, v in pairs if v.is_correct is not right)
    return Finding(name, not failures, len(pairs), failures)


def _no_failures(cases: Sequence[_Case], verdicts: Sequence[Verdict]) -> Finding:
    pairs = zip(cases, verdicts, strict=True)
    failures = tuple(f"{c.name}: {v.status} {v.reason}" for c, v in pairs if v.is_infrastructure)
    return Finding("the grader never fails", not failures, len(cases), failures)


def _same(name: str, cases: Sequence[_Case], first: Sequence[Verdict], others: Sequence[Sequence[Verdict]]) -> Finding:
    failures = tuple(
        f"{case.name}: {a.status} {a.score:g} and then {b.status} {b.score:g}"
        for other in others
        for case, a, b in zip(cases, first, other, strict=True)
        if (a.status, a.score) != (b.status, b.score)
    )
    return Finding(name, not failures, len(cases) * len(others), failures)


def _in_time(seconds: Sequence[tuple[_Case, float]], limit: float) -> Finding:
    late = tuple(f"{c.name}: {s:.2f} s" for c, s in seconds if s > limit)
    return Finding(f"each row within {limit:g} s", not late, len(seconds), late)
