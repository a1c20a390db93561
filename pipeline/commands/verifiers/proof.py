"""Proof of verifiers on labelled rows, in one report: labels, harmless rewritings, probes for holes, a second opinion.

`check` proves one verifier, and asks again in other ways; `audit` takes rows that name their own.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
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
)
from verizero.pipeline.commands.verifiers.rewriting import probes, rewritten
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.types import Attempt, Verdict

SHOWN = 6
"""Cases whose verdicts are shown, whatever they are."""
PATIENCE = 10
"""Times the seconds of a row after which it is ended, where that is possible."""
MOST_CHARACTERS = 500
"""Characters of a probe that are kept."""
LABELS = (
    ("right answers are accepted", True, "false negative"),
    ("near misses are refused", False, "false positive"),
)
"""A property of labelled answers, their label, and the name of the error."""


@dataclass(frozen=True, slots=True)
class Property:
    """One property: true of all `checked` cases, or the cases that break it."""

    name: str
    passed: bool
    checked: int
    failures: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the finding for a terminal: one line, and one for each of the first failures."""
        shown = "".join(f"\n    {f}" for f in self.failures[:5])
        more = f"\n    and {len(self.failures) - 5} more" if len(self.failures) > 5 else ""
        num = f"{self.checked} checked" if self.passed else f"{len(self.failures)} of {self.checked} fail"
        return f"{'ok  ' if self.passed else 'FAIL'} {self.name} ({num}){shown}{more}"


@dataclass(frozen=True, slots=True)
class Case:
    """A response to a row, and the verdict on it. `what`: the kind of error, or how it was written."""

    row: Row
    what: str
    attempt: Attempt
    label: bool | None
    """True: it must be accepted; False: refused; None: nobody labelled it."""
    verdict: Verdict
    other: str = ""
    """A second verdict."""

    def __str__(self) -> str:
        what = f"{self.what}: " if self.what else ""
        text = f"line {self.row.line}: {what}{self.attempt.response!r:.80}: {brief(self.verdict)}"
        return f"{text}, before: {self.other}" if self.other else text

    @property
    def graded_by(self) -> str:
        """The verifier of the row, and its domain if it names one, as the beginning of a line."""
        return f"{self.row.verifier.name}{'' if self.row.domain == 'default' else f'/{self.row.domain}'}: "


@dataclass(slots=True)
class Report:
    """All findings, complete lists of the cases that break them, and the verifier's speed."""

    verifier: str
    """Empty: the rows' own."""
    findings: list[Property] = field(default_factory=list)
    cases: dict[str, list[Case]] = field(default_factory=dict)
    """Kind -> cases: errors, changed by a rewriting, rewarded probes, disagreements with the second opinion."""
    compared: int = 0
    """Verdicts that were compared with a second opinion."""
    read: tuple[str, ...] = ()
    """The verdicts on some cases, and what was extracted from each."""
    rows_per_s: float = 0.0
    rows_per_cpu_s: float | None = None
    """None if another process grades."""
    slowest_s: float | None = None

    @property
    def passed(self) -> bool:
        """True if every property holds; disagreements are for a person to decide."""
        return all(f.passed for f in self.findings)

    def __str__(self) -> str:
        """Return the report for a terminal."""
        lines = [f"verifier {self.verifier}"] if self.verifier else []
        lines += [f.line() for f in self.findings]
        if self.compared:
            lines.append(f"second opinion: {len(self.cases['disagreements'])} of {self.compared} verdicts disagree")
        if self.read:
            lines += ["what was read, for example:", *(f"    {line}" for line in self.read)]
        if self.slowest_s is not None:
            cpu_speed = self.rows_per_cpu_s
            cpu = "" if cpu_speed is None else f", {cpu_speed:,.0f} rows per CPU second in this process"
            lines.append(f"speed: {self.rows_per_s:,.0f} rows/s{cpu}; slowest row {self.slowest_s * 1000:.1f} ms")
        return "\n".join([*lines, "all checks passed" if self.passed else "NOT FIT as a reward: see FAIL above"])


Ask = Callable[[Sequence[tuple[str, Attempt]]], list[Verdict]]
"""Grades attempts, each with the key of its verifier, together."""


def check(
    verifier: Choice,
    rows: Path | Sequence[Row],
    *,
    params: Mapping[str, Any] | None = None,
    time_s: float = 1.0,
    threads: int = 8,
    base: Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check that `verifier` deserves to be a reward, with `params`, or where a row names it with others, with those.

    rows: {"reference", "prompt"?, and "accept": [responses] and "refuse": [near misses], or "response" with "label"};
    a "response" without a label counts as right. Checked besides what an audit does: verdicts are the same a second
    time, in another order, one at a time and from `threads` threads, and each takes at most `time_s` seconds. Where the
    grader fails, the case is not asked again.
    The verifier's file may be in `base` (default: the working folder) or in the folder of the rows.
    Raises: DataError for invalid rows; ConfigError if no row has a right or a wrong answer; UnknownName.
    """
    folder = rows.parent if isinstance(rows, Path) else None
    defaults = Defaults(choice_of(verifier, params), base or Path.cwd(), folder)
    key = key_of(choice_of(verifier, params), defaults.base, folder)
    grader = bound(key)
    own = good_rows(rows, defaults) if isinstance(rows, Path) else rows
    keyed = [_with_key(row, key) for row in own]

    def ask(some: Sequence[tuple[str, Attempt]]) -> list[Verdict]:
        return score_all([key for key, _ in some], [attempt for _, attempt in some], PATIENCE * time_s)

    labelled = [(row, attempt, label is not False) for row in keyed for attempt, label in _labelled(row)]
    for is_right, what in ((True, "right answer ('accept', or 'response')"), (False, "near miss ('refuse')")):
        if not any(label is is_right for *_, label in labelled):
            raise ConfigError(f"the rows hold no {what}; a verifier is checked against at least one of each")
    ask([(row.key, attempt) for row, attempt, _ in labelled[:1]])  # what a first call loads is no part of the speed
    wall, cpu = time.perf_counter(), time.process_time()
    cases = _graded(labelled, ask)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    report = _proven(Report(grader.name), cases, ask)
    sound = [c for c in cases if not c.verdict.is_infrastructure]
    seconds = [(c, c.verdict.seconds) for c in cases if c.verdict.is_infrastructure]
    if sound:
        alone, alone_s = _one_by_one(sound, ask, progress or Progress())
        seconds += zip(sound, alone_s, strict=True)
        report.findings.append(_same_again(sound, alone, ask))
        with ThreadPoolExecutor(threads, "check") as pool:
            verdicts = [v for some in pool.map(lambda c: ask([(c.row.key, c.attempt)]), sound) for v in some]
        report.findings.append(_same(f"the same verdicts from {threads} threads", sound, [verdicts]))
    late = tuple(f"{c}: {s:.2f} s" for c, s in seconds if s > time_s)
    report.findings.append(Property(f"each row within {time_s:g} s", not late, len(seconds), late))
    by_label = [[c for c in cases if c.label is label][: SHOWN // 2] for label in (True, False)]
    report.read = tuple(str(c) for some in by_label for c in some)
    report.rows_per_s, report.slowest_s = len(cases) / max(wall, 1e-9), max(s for _, s in seconds)
    report.rows_per_cpu_s = len(cases) / max(cpu, 1e-9) if grader.verifier.is_ours else None
    return report


def audit(
    rows: Path | Sequence[Row],
    *,
    verifier: Choice | None = None,
    second: Choice | None = None,
    save: Path | None = None,
    base: Path | None = None,
) -> Report:
    """Compare the verdicts on `rows` with their labels, and try rewritings and probes.

    rows: {"verifier", "reference", "response", "label"?, "prompt"?, ..}; responses in lists `accept` and `refuse` count
    as labelled. `verifier` grades rows that name none. `second` grades all rows again: the verdicts that differ, and
    all other cases, are written to `save` as JSON lines.
    Raises: DataError for invalid rows, UnknownName.
    """
    base = base or Path.cwd()
    rows = good_rows(rows, Defaults(verifier, base)) if isinstance(rows, Path) else list(rows)

    def ask(some: Sequence[tuple[str, Attempt]]) -> list[Verdict]:
        return score_all([key for key, _ in some], [attempt for _, attempt in some])

    cases = _graded([(row, attempt, label) for row in rows for attempt, label in _labelled(row)], ask)
    report = _proven(Report(""), cases, ask, rows)
    if second is not None:
        key = key_of(second, base)
        others = bound(key).score([c.attempt for c in cases])
        report.compared = len(cases)
        report.cases["disagreements"] = [
            Case(c.row, f"{c.row.verifier.name} against {bound(key).name}", c.attempt, c.label, c.verdict, brief(other))
            for c, other in zip(cases, others, strict=True)
            if disagree(c.verdict, other)
        ]
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        with save.open("w", encoding="utf-8") as out:
            for kind, some in report.cases.items():
                for case in some:
                    row = {"kind": kind, "id": case.row.id, "what": case.what}
                    row["response"] = case.attempt.response[:MOST_CHARACTERS]
                    row |= {"verdict": brief(case.verdict), "other": case.other}
                    out.write(json.dumps(row, ensure_ascii=False) + "\n")
    return report


def disagree(first: Verdict, second: Verdict) -> bool:
    """True if exactly one of two verdicts earns the full reward. False if a grader failed."""
    if first.is_left_out or second.is_left_out:
        return False
    return first.is_correct != second.is_correct


def _labelled(row: Row) -> list[tuple[Attempt, bool | None]]:
    """Return the row's responses with their labels."""
    response = [] if row.response is None else [(row.attempt(), row.label)]
    lists = [(row.attempt(text), label) for label, texts in ((True, row.accept), (False, row.refuse)) for text in texts]
    return [*response, *lists]


def _graded(some: Sequence[tuple[Row, Attempt, bool | None]], ask: Ask) -> list[Case]:
    verdicts = ask([(row.key, attempt) for row, attempt, _ in some])
    return [Case(row, "", attempt, label, v) for (row, attempt, label), v in zip(some, verdicts, strict=True)]


def _proven(report: Report, cases: Sequence[Case], ask: Ask, rows: Sequence[Row] | None = None) -> Report:
    """Add what the cases say of the labels, and what rewritings and probes of the rows give, to the report.

    `rows`: those that are probed; None: those of the cases, unless the grader fails on all of them.
    """
    failed = [c for c in cases if c.verdict.is_infrastructure]
    errors = [replace(c, what="failure") for c in failed]
    of: dict[str, list[Case]] = {}
    for c in cases:
        of.setdefault("" if report.verifier else c.graded_by, []).append(c)
    for by, some in of.items():
        for name, label, what in LABELS:
            labelled = [c for c in some if c.label is label and not c.verdict.is_infrastructure]
            wrong = [replace(c, what=what) for c in labelled if c.verdict.is_correct is not label]
            report.findings.append(Property(f"{by}{name}", not wrong, len(labelled), tuple(map(str, wrong))))
            errors += wrong
    report.findings.append(Property("the grader never fails", not failed, len(cases), tuple(map(str, failed))))
    if rows is None:
        rows = [c.row for c in cases] if len(failed) < len(cases) else []
    # Only fully right answers are rewritten: a wrong one may change its reason, and a response that was cut its end.
    again = [
        (c.row, name, text, brief(c.verdict))
        for c in cases
        if c.verdict.is_correct
        for name, text in rewritten(c.attempt.response).items()
    ]
    changed = _try(report, "rewritings keep the verdict", again, lambda v: not v.is_correct, ask)
    distinct = {json.dumps([r.key, r.reference, r.prompt], default=repr, sort_keys=True): r for r in rows}
    probed = [(row, name, text, "") for row in distinct.values() for name, text in probes(row).items()]
    title = "answers without content earn nothing"
    rewarded = _try(report, title, probed, lambda v: v.status == "graded" and v.score > 0, ask)
    report.cases |= {"errors": errors, "changed": changed, "rewarded": rewarded}
    return report


def _try(
    report: Report, title: str, todo: Sequence[tuple[Row, str, str, str]], is_wrong: Callable[[Verdict], bool], ask: Ask
) -> list[Case]:
    """Grade responses (row, way of writing, text, earlier verdict) together, and return the wrong ones."""
    verdicts = ask([(row.key, row.attempt(text)) for row, _, text, _ in todo])
    cases = [
        Case(row, name, row.attempt(text), None, verdict, before)
        for (row, name, text, before), verdict in zip(todo, verdicts, strict=True)
        if is_wrong(verdict)
    ]
    report.findings.append(Property(title, not cases, len(todo), tuple(map(str, cases))))
    return cases


def _one_by_one(cases: Sequence[Case], ask: Ask, progress: Progress) -> tuple[list[Verdict], list[float]]:
    """Return the verdicts of single calls, and the seconds of each."""
    verdicts, seconds = list[Verdict](), list[float]()
    progress.begin("one at a time", 0, len(cases))
    for number, c in enumerate(cases, 1):
        start = time.perf_counter()
        verdicts += ask([(c.row.key, c.attempt)])
        seconds.append(time.perf_counter() - start)
        progress.advance(number, {})
    return verdicts, seconds


def _same_again(cases: Sequence[Case], alone: Sequence[Verdict], ask: Ask) -> Property:
    """Compare with verdicts of single calls, of a second time, and of another order."""
    order = list(range(len(cases)))
    random.Random(0).shuffle(order)
    asked = [(c.row.key, c.attempt) for c in cases]
    shuffled = dict(zip(order, ask([asked[i] for i in order]), strict=True))
    others = [alone, ask(asked), [shuffled[i] for i in range(len(cases))]]
    return _same("the same verdicts twice, shuffled and one at a time", cases, others)


def _same(name: str, cases: Sequence[Case], others: Sequence[Sequence[Verdict]]) -> Property:
    failures = tuple(
        f"{c} and then {b.status} {b.score:g}"
        for other in others
        for c, b in zip(cases, other, strict=True)
        if (c.verdict.status, c.verdict.score) != (b.status, b.score)
    )
    return Property(name, not failures, len(cases) * len(others), failures)


def _with_key(row: Row, key: str) -> Row:
    """Return the row with that verifier: with the row's own parameters, if it names the same one."""
    of_row, checked = json.loads(row.key), json.loads(key)
    is_same = all(of_row.get(name) == checked.get(name) for name in ("name", "path"))
    return row if is_same and "params" in of_row else replace(row, key=key)
