"""Audit of verifiers on labelled rows: errors both ways, a second opinion, harmless rewritings, probes for holes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from verizero.pipeline.commands.verifiers.labelled_rows import (
    Choice,
    Defaults,
    Row,
    bound,
    brief,
    good_rows,
    key_of,
    score_all,
)
from verizero.pipeline.commands.verifiers.rewriting import probes, rewritten
from verizero.pipeline.scoring.second_opinion import disagree
from verizero.pipeline.types import Verdict

Counts = dict[str, tuple[int, int]]
"""Name -> (responses tried, responses that went wrong)."""


@dataclass(frozen=True, slots=True)
class LabelTally:
    """Counts of labelled rows of one kind: right and wrong answers, and how many of each got the wrong verdict."""

    right: int = 0
    wrong: int = 0
    false_negatives: int = 0
    false_positives: int = 0
    failures: int = 0
    """Rows in which the grader failed; no other number counts them."""

    @property
    def accuracy(self) -> float:
        """The share of rows whose verdict agrees with the label; NaN without rows."""
        n = self.right + self.wrong
        return 1 - (self.false_negatives + self.false_positives) / n if n else float("nan")


@dataclass(frozen=True, slots=True)
class Case:
    """A response whose verdict is wrong; `what` names the kind of error, `other` a second verdict."""

    id: Any
    what: str
    response: str
    verdict: str
    other: str = ""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The findings of an audit. The lists of cases are complete."""

    tallies: dict[str, LabelTally]
    errors: tuple[Case, ...]
    disagreements: tuple[Case, ...] = ()
    compared: int = 0
    rewritings: Counts = field(default_factory=dict)
    changed: tuple[Case, ...] = ()
    probes: Counts = field(default_factory=dict)
    rewarded: tuple[Case, ...] = ()

    @property
    def passed(self) -> bool:
        """True without errors, changed verdicts and rewarded probes; disagreements are for a person to decide."""
        return not (self.errors or self.changed or self.rewarded)

    @property
    def cases(self) -> dict[str, tuple[Case, ...]]:
        """All cases by their kind."""
        return {
            "disagreements": self.disagreements,
            "errors": self.errors,
            "changed": self.changed,
            "rewarded": self.rewarded,
        }

    def __str__(self) -> str:
        """Return the report for a terminal."""
        lines = ["labelled rows            right  wrong  false-  false+  failed  accuracy"]
        for name, t in self.tallies.items():
            accuracy = f"{t.accuracy:.1%}" if t.right + t.wrong else "-"
            counts = f"{t.right:6} {t.wrong:6} {t.false_negatives:7} {t.false_positives:7} {t.failures:7}"
            lines.append(f"{name:<24}{counts}  {accuracy:>8}")
        if self.compared:
            lines.append(f"second opinion: {len(self.disagreements)} of {self.compared} verdicts disagree")
        for title, counted in (("rewritings, verdicts changed", self.rewritings), ("probes, rewarded", self.probes)):
            if counted:
                lines.append(title)
                lines += [f"  {name:<40}{wrong:5} of {tried}" for name, (tried, wrong) in counted.items()]
        for kind, cases in self.cases.items():
            if kind != "disagreements":  # only their number is shown: they need not be errors
                lines += [f"{kind}: {c.id} {c.what}: {c.verdict} {c.other} for {c.response!r:.100}" for c in cases[:10]]
        return "\n".join(lines)


def audit(
    rows: Path | Sequence[Row],
    *,
    verifier: Choice | None = None,
    second: Choice | None = None,
    save: Path | None = None,
    base: Path | None = None,
) -> AuditReport:
    """Compare the verdicts on `rows` with their labels, and try rewritings and probes.

    rows: {"verifier", "reference", "response", "label"?, "prompt"?, ..}; responses in lists `accept` and `refuse` count
    as labelled. `verifier` grades rows that name none. `second` grades all rows again: the verdicts that differ, and
    all other cases, are written to `save` as JSON lines.
    Raises: DataError for invalid rows, UnknownName.
    """
    base = base or Path.cwd()
    rows = good_rows(rows, Defaults(verifier, base)) if isinstance(rows, Path) else list(rows)
    responses = [(r, text, label) for r in rows for text, label in _labelled(r)]
    attempts = [r.attempt(None if text == r.response else text) for r, text, _ in responses]
    verdicts = score_all([r.key for r, _, _ in responses], attempts)
    graded = [(r, text, label, v) for (r, text, label), v in zip(responses, verdicts, strict=True)]
    disagreements: list[Case] = []
    if second is not None:
        key = key_of(second, base)
        disagreements = [
            Case(r.id, f"{r.verifier.name} against {bound(key).name}", text, brief(v), brief(other))
            for (r, text, _, v), other in zip(graded, bound(key).score(attempts), strict=True)
            if disagree(v, other)
        ]
    tallies, errors = _tally(graded)
    rewritings, changed = _rewrite(graded)
    probed, rewarded = _probe(rows)
    compared = len(responses) if second is not None else 0
    report = AuditReport(tallies, errors, tuple(disagreements), compared, rewritings, changed, probed, rewarded)
    if save is not None:
        save_cases(report, save)
    return report


def save_cases(report: AuditReport, path: Path) -> None:
    """Write every case of the report as one JSON line with its kind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for kind, cases in report.cases.items():
            for case in cases:
                out.write(json.dumps({"kind": kind, **asdict(case)}, ensure_ascii=False) + "\n")


def _labelled(row: Row) -> list[tuple[str, bool | None]]:
    response = [] if row.response is None else [(row.response, row.label)]
    return [*response, *((t, True) for t in row.accept), *((t, False) for t in row.refuse)]


def _tally(
    graded: Sequence[tuple[Row, str, bool | None, Verdict]],
) -> tuple[dict[str, LabelTally], tuple[Case, ...]]:
    counts: dict[str, Counter[str]] = {}
    errors = []
    for row, text, label, verdict in graded:
        if label is None:
            continue
        kind = "failures" if verdict.is_infrastructure else "right" if label else "wrong"
        missed = not verdict.is_infrastructure and verdict.is_correct is not label
        what = "failures" if verdict.is_infrastructure else "false_negatives" if label else "false_positives"
        for name in dict.fromkeys(["all", row.verifier.name, f"{row.verifier.name}/{row.domain}"]):
            counts.setdefault(name, Counter())[kind] += 1
            counts[name][what] += missed
        if missed or verdict.is_infrastructure:
            errors.append(Case(row.id, what.removesuffix("s").replace("_", " "), text, brief(verdict)))
    return {name: LabelTally(**{k: c[k] for k in LabelTally.__slots__}) for name, c in counts.items()}, tuple(errors)


def _rewrite(graded: Sequence[tuple[Row, str, bool | None, Verdict]]) -> tuple[Counts, tuple[Case, ...]]:
    # Only fully right answers are rewritten: a wrong one may change its reason, and a response that was cut its end.
    todo = [
        (row, name, text, brief(before))
        for row, response, _, before in graded
        if before.is_correct
        for name, text in rewritten(response).items()
    ]
    return _try(todo, lambda verdict: not verdict.is_correct)


def _probe(rows: Sequence[Row]) -> tuple[Counts, tuple[Case, ...]]:
    distinct = {json.dumps([r.key, r.reference, r.prompt], default=repr, sort_keys=True): r for r in rows}
    todo = [(row, name, text, "") for row in distinct.values() for name, text in probes(row).items()]
    return _try(todo, lambda verdict: verdict.status == "graded" and verdict.score > 0, most_characters=500)


def _try(
    todo: Sequence[tuple[Row, str, str, str]], is_wrong: Callable[[Verdict], bool], most_characters: int | None = None
) -> tuple[Counts, tuple[Case, ...]]:
    """Grade responses (row, name of the try, text, earlier verdict) together; count and list the wrong verdicts."""
    verdicts = score_all([row.key for row, *_ in todo], [row.attempt(text) for row, _, text, _ in todo])
    counts: Counts = {}
    cases = []
    for (row, name, text, before), verdict in zip(todo, verdicts, strict=True):
        kind = "a number of the prompt" if name.startswith("number ") else name
        tried, wrong = counts.get(kind, (0, 0))
        counts[kind] = tried + 1, wrong + is_wrong(verdict)
        if is_wrong(verdict):
            cases.append(Case(row.id, name, text[:most_characters], brief(verdict), before))
    return counts, tuple(cases)
