"""The section of a page with the diagnosis: each cause with its curve, its lines and its remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from verizero.pipeline.report.curves import Chart
from verizero.pipeline.shown import in_html

SETTINGS = re.compile(r"(?:--set (?:'[^']*'|[\w./\[\]]+=(?:\{[^}]*\}|[^\s,;]+)) ?)+")
"""Command-line options in a remedy, which words may follow."""


@dataclass(frozen=True, slots=True)
class Card:
    """A cause, as the page shows it."""

    cause: str
    level: str
    confidence: float
    sentence: str
    evidence: tuple[str, ...]
    remedy: str
    chart: Chart | None
    """The curve of the metric that shows the cause; None if texts show it."""


def diagnosis_section(cards: Sequence[Card] | None, plots: Sequence[str | None]) -> str:
    """Return the section; empty without a diagnosis. `plots`: the drawn chart of each card, or None."""
    if cards is None:
        return ""
    body = "".join(_article(card, plot) for card, plot in zip(cards, plots, strict=True))
    note = '<p class="note">No cause was found in the files of this run for which it would not learn.</p>'
    return f'<section id="diagnosis"><h2>Diagnosis</h2>\n{body or note}\n</section>\n'


def _article(card: Card, plot: str | None) -> str:
    lines = "".join(f"<li>{in_html(line)}</li>" for line in card.evidence)
    plot_markup = "" if plot is None or card.chart is None else f"<p>{in_html(card.chart.title)}</p>{plot}"
    return (
        f'<article class="card finding {in_html(card.level)}"><h3><span class="level">{in_html(card.level)}</span> '
        f"{in_html(card.cause)} <small>confidence {card.confidence:.0%}</small></h3>"
        f'<div class="why"><p>{in_html(card.sentence)}</p><ul>{lines}</ul>{_remedy(card.remedy)}</div>'
        f'<div class="curve">{plot_markup}</div></article>'
    )


def _remedy(text: str) -> str:
    """Return the remedy, its options of a command line as a line that one click selects."""
    match = SETTINGS.match(text)
    line = match[0].strip() if match else ""
    rest = text[match.end() :].strip(" ,;") if match else ""
    if not line:
        return f"<p>Remedy: {in_html(text)}</p>"
    also = f"<p>{in_html(rest)}</p>" if rest else ""
    return f'<p>Remedy:</p><pre class="remedy" tabindex="0">{in_html(line)}</pre>{also}'
