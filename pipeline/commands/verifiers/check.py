"""Check a verifier on labelled rows before it becomes a reward."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.commands.verifiers.labelled_rows import Choice, Defaults, Row, bound, brief, good_rows, key_of
from pipeline.errors import ConfigError
from pipeline.types import Attempt, Verdict
from verifiers.base import BoundVerifier

EMPTY = {
    "empty": "",
    "spaces": " \n\t ",
    "empty box": r"\boxed{}",
    "empty tags": "<think></think><answer></answer>",
    "thinking alone": "<think>I cannot say.</think>",
    "unfinished thinking": "<think>It may be",
}
"""Responses without an answer: wrong for every reference."""


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
    rows_per_cpu_s: float
    slowest_s: float

    @property
    def passed(self) -> bool:
        """True if every property holds."""
        return all(f.passed for f in self.findings)

    def __str__(self) -> str:
        """Return the report for a terminal."""
        speed = f"{self.rows_per_s:,.0f} rows/s, {self.rows_per_cpu_s:,.0f} rows per CPU second in this process"
        lines = [f"verifier {self.verifier}", *(f.line() for f in self.findings)]
        lines.append(f"speed: {speed}; slowest row {self.slowest_s * 1000:.1f} ms")
        return "\n".join([*lines, "all checks passed" if self.passed else "NOT FIT as a reward: see FAIL above"])


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    attempt: Attempt
    right: bool


def check(
    verifier: Choice,
    rows: Path | Sequence[Row],
    *,
    time_s: float = 1.0,
    threads: int = 8,
    seed: int = 0,
    base: Path | None = None,
) -> CheckReport:
    """Check that `verifier` deserves to be a reward.

    rows: {"reference", "prompt"?, and "accept": [responses] and "refuse": [near misses], or "response" with "label"};
    a "response" without a label counts as right. Checked: right responses are accepted, near misses and responses
    without an answer are refused, no row makes the grader fail, verdicts are the same a second time, in another order,
    one at a time and from `threads` threads, and each takes at most `time_s` seconds.
    The verifier's file may be in `base` (default: the working folder) or in the folder of the rows.
    Raises: DataError for invalid rows; ConfigError if no row has a right or a wrong answer; UnknownName.
    """
    defaults = Defaults(verifier, base or Path.cwd())
    grader = bound(key_of(verifier, defaults.base, rows.parent if isinstance(rows, Path) else None))
    rows = good_rows(rows, defaults) if isinstance(rows, Path) else rows
    cases = _cases(rows)
    for wanted, what in ((True, "right answer ('accept', or 'response')"), (False, "near miss ('refuse')")):
        if not any(c.right is wanted for c in cases):
            raise ConfigError(f"the rows hold no {what}; a verifier is checked against at least one of each")
    grader.score([cases[0].attempt])  # what a first call loads is no part of the speed
    wall, cpu = time.perf_counter(), time.process_time()
    together = grader.score([c.attempt for c in cases])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    alone, seconds = _one_by_one(grader, cases)
    empties = [_Case(f"line {r.line}: {n}", r.attempt(e), False) for r in rows for n, e in EMPTY.items()]
    findings = (
        _labels("right answers are accepted", cases, together, True),
        _labels("near misses are refused", cases, together, False),
        _labels("answers without content are refused", empties, grader.score([c.attempt for c in empties]), False),
        _no_failures(cases, together),
        _same(
            "the same verdicts twice, shuffled and one at a time",
            cases,
            together,
            [alone, *_again(grader, cases, seed)],
        ),
        _same(f"the same verdicts from {threads} threads", cases, together, [_threaded(grader, cases, threads)]),
        _in_time(cases, seconds, time_s),
    )
    return CheckReport(grader.name, findings, len(cases) / max(wall, 1e-9), len(cases) / max(cpu, 1e-9), max(seconds))


def _cases(rows: Sequence[Row]) -> list[_Case]:
    cases = []
    for row in rows:
        if row.response is not None:
            right = row.label is not False
            cases.append(_Case(f"line {row.line}: {row.response!r:.80}", row.attempt(), right))
        for right, responses in ((True, row.accept), (False, row.refuse)):
            cases += [_Case(f"line {row.line}: {r!r:.80}", row.attempt(r), right) for r in responses]
    return cases


def _one_by_one(grader: BoundVerifier[Any], cases: Sequence[_Case]) -> tuple[list[Verdict], list[float]]:
    verdicts, seconds = [], []
    for case in cases:
        start = time.perf_counter()
        verdicts += grader.score([case.attempt])
        seconds.append(time.perf_counter() - start)
    return verdicts, seconds


def _again(grader: BoundVerifier[Any], cases: Sequence[_Case], seed: int) -> list[list[Verdict]]:
    order = list(range(len(cases)))
    random.Random(seed).shuffle(order)
    shuffled = dict(zip(order, grader.score([cases[i].attempt for i in order]), strict=True))
    return [grader.score([c.attempt for c in cases]), [shuffled[i] for i in range(len(cases))]]


def _threaded(grader: BoundVerifier[Any], cases: Sequence[_Case], threads: int) -> list[Verdict]:
    with ThreadPoolExecutor(threads, "check") as pool:
        return [v for some in pool.map(lambda c: grader.score([c.attempt]), cases) for v in some]


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


def _in_time(cases: Sequence[_Case], seconds: Sequence[float], limit: float) -> Finding:
    late = tuple(f"{c.name}: {s:.2f} s" for c, s in zip(cases, seconds, strict=True) if s > limit)
    return Finding(f"each row within {limit:g} s", not late, len(cases), late)
