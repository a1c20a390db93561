"""Audit verifiers on labelled rows: errors both ways, a second opinion, rewritings that must not matter, probes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.commands.verifiers.labelled_rows import Choice, Defaults, Row, bound, good_rows, key_of
from pipeline.commands.verifiers.rewriting import probes, rewritten
from pipeline.scoring.second_opinion import disagree
from pipeline.types import Attempt, Verdict


@dataclass(frozen=True, slots=True)
class Tally:
    """Labelled rows of one kind: right and wrong answers, and how many of each were judged wrongly."""

    right: int = 0
    wrong: int = 0
    false_negatives: int = 0
    false_positives: int = 0
    failures: int = 0
    """Rows in which the grader failed; they count in no other number."""

    @property
    def accuracy(self) -> float:
        """Share of rows judged as labelled; NaN without rows."""
        n = self.right + self.wrong
        return 1 - (self.false_negatives + self.false_positives) / n if n else float("nan")


@dataclass(frozen=True, slots=True)
class Case:
    """One row that went wrong, with what was tried and what was said."""

    id: Any
    what: str
    response: str
    verdict: str
    other: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The case as a line of JSON."""
        return {
            "id": self.id,
            "what": self.what,
            "response": self.response,
            "verdict": self.verdict,
            "other": self.other,
        }


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found. Each list of cases is complete; each pair of counts is (tried, went wrong) by name."""

    tallies: dict[str, Tally]
    errors: tuple[Case, ...]
    disagreements: tuple[Case, ...] = ()
    compared: int = 0
    rewritings: dict[str, tuple[int, int]] = field(default_factory=dict)
    changed: tuple[Case, ...] = ()
    probes: dict[str, tuple[int, int]] = field(default_factory=dict)
    rewarded: tuple[Case, ...] = ()

    @property
    def passed(self) -> bool:
        """No error, no verdict that changed, no probe that was rewarded; disagreements are for a person to judge."""
        return not (self.errors or self.changed or self.rewarded)

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        tallies = {
            name: {
                "right": t.right,
                "wrong": t.wrong,
                "false_negatives": t.false_negatives,
                "false_positives": t.false_positives,
                "failures": t.failures,
            }
            for name, t in self.tallies.items()
        }
        cases = {n: [c.as_dict() for c in getattr(self, n)] for n in ("errors", "disagreements", "changed", "rewarded")}
        return {
            "tallies": tallies,
            "compared": self.compared,
            "rewritings": {n: list(v) for n, v in self.rewritings.items()},
            "probes": {n: list(v) for n, v in self.probes.items()},
            **cases,
        }

    def __str__(self) -> str:
        """The report for a terminal."""
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
        for title, cases in (("errors", self.errors), ("changed", self.changed), ("rewarded", self.rewarded)):
            lines += [f"{title}: {c.id} {c.what}: {c.verdict} {c.other} for {c.response!r:.100}" for c in cases[:10]]
        return "\n".join(lines)


def audit(
    rows: Path | Sequence[Row],
    *,
    verifier: Choice | None = None,
    second: Choice | None = None,
    save: Path | None = None,
    base: Path | None = None,
) -> AuditReport:
    """What is wrong with the verdicts on `rows`: {"verifier", "reference", "response", "label"?, "prompt"?, ..}.

    `accept` and `refuse` lists count as labelled responses. `verifier` grades rows that name none; `second` grades all
    again, and what the two say differently goes to `save` as JSON lines ("disagreements", beside the other findings).
    Raises: DataError for rows that are none, UnknownName.
    """
    base = base or Path.cwd()
    given = good_rows(rows, Defaults(verifier, base)) if isinstance(rows, Path) else list(rows)
    asked = [(r, text, label) for r in given for text, label in _labelled(r)]
    verdicts = _score([(r.key, r.attempt(None if text == r.response else text)) for r, text, _ in asked])
    labelled = list(zip(asked, verdicts, strict=True))
    tallies, errors = _tally([(r, text, label, v) for (r, text, label), v in labelled if label is not None])
    disagreements: list[Case] = []
    if second is not None:
        key = key_of(second, base)
        others = _score([(key, r.attempt(None if text == r.response else text)) for r, text, _ in asked])
        disagreements = [
            Case(r.id, f"{r.verifier.name} against {bound(key).name}", text, said(v), said(o))
            for ((r, text, _), v), o in zip(labelled, others, strict=True)
            if disagree(v, o)
        ]
    rewritings, changed = _rewrite([(r, text, v) for (r, text, _), v in labelled])
    tried, rewarded = _probe(given)
    compared = len(asked) if second is not None else 0
    report = AuditReport(tallies, errors, tuple(disagreements), compared, rewritings, changed, tried, rewarded)
    if save is not None:
        save_cases(report, save)
    return report


def said(verdict: Verdict) -> str:
    """A verdict in a few words."""
    return f"{verdict.status} {verdict.score:g} {verdict.reason}".strip()


def save_cases(report: AuditReport, path: Path) -> None:
    """Write every case of the report as one JSON line with its kind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for kind in ("disagreements", "errors", "changed", "rewarded"):
            for case in getattr(report, kind):
                out.write(json.dumps({"kind": kind, **case.as_dict()}, ensure_ascii=False) + "\n")


def _labelled(row: Row) -> list[tuple[str, bool | None]]:
    own = [] if row.response is None else [(row.response, row.label)]
    return [*own, *((t, True) for t in row.accept), *((t, False) for t in row.refuse)]


def _score(asked: Sequence[tuple[str, Attempt]]) -> list[Verdict]:
    """One verdict per (verifier key, attempt), in order; attempts of one verifier are graded together."""
    places: dict[str, list[int]] = {}
    for i, (key, _) in enumerate(asked):
        places.setdefault(key, []).append(i)
    found: dict[int, Verdict] = {}
    for key, some in places.items():
        found.update(zip(some, bound(key).score([asked[i][1] for i in some]), strict=True))
    return [found[i] for i in range(len(asked))]


def _tally(rows: Sequence[tuple[Row, str, bool, Verdict]]) -> tuple[dict[str, Tally], tuple[Case, ...]]:
    counts: dict[str, Counter[str]] = {}
    errors = []
    for row, text, label, verdict in rows:
        kind = "failures" if verdict.is_infrastructure else "right" if label else "wrong"
        missed = not verdict.is_infrastructure and verdict.is_correct is not label
        what = "failures" if verdict.is_infrastructure else "false_negatives" if label else "false_positives"
        for name in dict.fromkeys(["all", row.verifier.name, f"{row.verifier.name}/{row.domain}"]):
            counts.setdefault(name, Counter())[kind] += 1
            counts[name][what] += missed
        if missed or verdict.is_infrastructure:
            errors.append(Case(row.id, what.removesuffix("s").replace("_", " "), text, said(verdict)))
    return {name: Tally(**{k: c[k] for k in Tally.__slots__}) for name, c in counts.items()}, tuple(errors)


def _rewrite(rows: Sequence[tuple[Row, str, Verdict]]) -> tuple[dict[str, tuple[int, int]], tuple[Case, ...]]:
    """Only fully right answers are rewritten: what is wrong may change its reason, and a cut one its end."""
    todo = [(r, name, text, v) for r, response, v in rows if v.is_correct for name, text in rewritten(response).items()]
    again = _score([(r.key, r.attempt(text)) for r, _, text, _ in todo])
    cases = []
    counts: dict[str, tuple[int, int]] = {}
    for (row, name, text, before), after in zip(todo, again, strict=True):
        differs = not after.is_correct
        tried, wrong = counts.get(name, (0, 0))
        counts[name] = (tried + 1, wrong + differs)
        if differs:
            cases.append(Case(row.id, name, text, said(after), said(before)))
    return counts, tuple(cases)


def _probe(rows: Sequence[Row]) -> tuple[dict[str, tuple[int, int]], tuple[Case, ...]]:
    distinct = {json.dumps([r.key, r.reference, r.prompt], default=repr, sort_keys=True): r for r in rows}
    todo = [(r, name, text) for r in distinct.values() for name, text in probes(r).items()]
    verdicts = _score([(r.key, r.attempt(text)) for r, _, text in todo])
    cases = []
    counts: dict[str, tuple[int, int]] = {}
    for (row, name, text), verdict in zip(todo, verdicts, strict=True):
        rewarded = verdict.status == "graded" and verdict.score > 0
        kind = "a number of the prompt" if name.startswith("number ") else name
        tried, wrong = counts.get(kind, (0, 0))
        counts[kind] = (tried + 1, wrong + rewarded)
        if rewarded:
            cases.append(Case(row.id, name, text[:500], said(verdict)))
    return counts, tuple(cases)
