"""The findings about a run as its page shows them, each with the curve of the number that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from verizero.pipeline.diagnosis.finding import PASS, Finding
from verizero.pipeline.diagnosis.ranking import diagnose
from verizero.pipeline.diagnosis.reading import Reading, read
from verizero.pipeline.report.curves import Chart, Series, pass_chart, thin
from verizero.pipeline.report.diagnosis_section import Card


def cards_of(folder: Path, say: Callable[[str], None]) -> list[Card] | None:
    """Return a card for each finding about the run in `folder`. A rule that fails is left out, and `say` tells it.

    None if the files cannot be read: a page without a diagnosis is better than none.
    """
    try:
        run = read(folder)
    except Exception as exc:
        say(f"warning: the run could not be diagnosed: {type(exc).__name__}: {exc}")
        return None
    findings = diagnose(run, lambda name, exc: say(rule_failed(name, exc)))
    return [card(run, finding, place) for place, finding in enumerate(findings, 1)]


def rule_failed(name: str, exc: Exception) -> str:
    """Return the warning about a rule that raised an exception."""
    return f"warning: the rule {name} of the diagnosis failed: {type(exc).__name__}: {exc}"


def card(run: Reading, finding: Finding, place: int) -> Card:
    """Return the card of a finding; `place` tells its chart from those of others."""
    metric = next((e.metric for e in finding.evidence if e.metric), "")
    chart = chart_of(run, metric)
    return Card(
        finding.cause,
        finding.level,
        finding.confidence,
        finding.sentence,
        tuple(map(str, finding.evidence)),
        finding.remedy,
        None if chart is None else replace(chart, name=f"diagnosis_{place}"),
    )


def chart_of(run: Reading, metric: str) -> Chart | None:
    """Return the curve of a number over the steps; of a stage that learns from texts if RL does not have it."""
    if metric == PASS:
        return pass_chart([e.row for e in run.evaluations])
    rl = [(row.step, row.metrics[metric]) for _, row in run.steps if metric in row.metrics]
    points = rl or [(row.step, row.metrics[metric]) for _, row in run.imitation if metric in row.metrics]
    if not points:
        return None
    return thin(
        Chart(
            name=metric,
            title=metric,
            caption="",
            x=tuple(float(step) for step, _ in points),
            series=(Series(metric, tuple(value for _, value in points)),),
            x_label="RL step" if rl else "SFT step",
        )
    )
