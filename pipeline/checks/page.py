"""Findings as cards with the curve of the number that shows each, and one page of HTML with those of any run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from verizero.pipeline.checks.diagnosis import Diagnosis, diagnose
from verizero.pipeline.checks.finding import PASS, Finding
from verizero.pipeline.checks.run_facts import RunFacts, read
from verizero.pipeline.host.disk import write_atomic
from verizero.pipeline.report.curves import Chart, Series, pass_chart, thin
from verizero.pipeline.report.page import Card, rendered
from verizero.pipeline.report.plots import draw


def cards_of(folder: Path, say: Callable[[str], None]) -> tuple[list[Card] | None, str]:
    """Return a card for each finding about the run in `folder`, and the sentence for a run without findings.

    A rule that fails is left out, with a warning by `say`; no cards if the run's files cannot be read.
    """
    try:
        run = read(folder)
    except Exception as exc:
        say(f"warning: the run could not be diagnosed: {type(exc).__name__}: {exc}")
        return None, ""
    findings = diagnose(run, lambda name, exc: say(rule_failed(name, exc)))
    return [card(run, finding, number) for number, finding in enumerate(findings, 1)], run.without_cause


def rule_failed(name: str, exc: Exception) -> str:
    """Return the warning about a rule that raised an exception."""
    return f"warning: the rule {name} of the diagnosis failed: {type(exc).__name__}: {exc}"


def card(run: RunFacts, finding: Finding, number: int) -> Card:
    """Return the card of a finding. `number` makes the name of its chart unique."""
    chart = chart_of(run, next((e.metric for e in finding.evidence if e.metric), ""))
    return Card(
        finding.cause,
        finding.level,
        finding.confidence,
        finding.sentence,
        tuple(map(str, finding.evidence)),
        finding.remedy,
        None if chart is None else replace(chart, name=f"diagnosis_{number}"),
    )


def chart_of(run: RunFacts, metric: str) -> Chart | None:
    """Return the curve of a metric over the RL steps, or over SFT steps if RL does not have it."""
    if metric == PASS:
        return pass_chart([e.row for e in run.evaluations])
    rl = [(row.step, row.metrics[metric]) for _, row in run.steps if metric in row.metrics]
    points = rl or [(row.step, row.metrics[metric]) for _, row in run.imitation if metric in row.metrics]
    if not points:
        return None
    x, curve = tuple(float(step) for step, _ in points), Series(metric, tuple(value for _, value in points))
    return thin(Chart(metric, metric, "", x, (curve,), x_label="RL step" if rl else "SFT step"))


def write_page(diagnosis: Diagnosis, path: Path) -> Path:
    """Write the page to `path` and return it. Texts of models and logs are data to it, and escaped."""
    cards = [card(diagnosis.facts, finding, number) for number, finding in enumerate(diagnosis.findings, 1)]
    drawn = [(c, draw(c.chart).svg if c.chart is not None else None) for c in cards]
    page = rendered(
        "diagnosis_page.html", diagnosis=diagnosis, cards=drawn, without_cause=diagnosis.facts.without_cause
    )
    return write_atomic(path, page.encode("utf-8", "replace"))
