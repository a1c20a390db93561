"""One page of HTML with a diagnosis: it asks nothing of any network, and can be sent to a colleague."""

from __future__ import annotations

from pathlib import Path
from string import Template

from verizero.pipeline.diagnosis.any_run import Diagnosis
from verizero.pipeline.diagnosis.cards import card
from verizero.pipeline.files import write_atomic
from verizero.pipeline.report.diagnosis_section import diagnosis_section
from verizero.pipeline.report.plots import draw
from verizero.pipeline.shown import in_html

STYLE = Path(__file__).parents[1] / "report" / "report.css"
PAGE = Template(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Diagnosis of $title</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<style>$style</style></head>
<body><main><h1>$title</h1>
<p>$ended</p>
$section<p class="note">$looked.</p>
<ul class="note">$notes</ul>
</main></body></html>
"""
)


def write_page(diagnosis: Diagnosis, path: Path) -> Path:
    """Write the page to `path` and return it. Texts of models and logs are data to it, and escaped."""
    cards = [card(diagnosis.facts, finding, number) for number, finding in enumerate(diagnosis.findings, 1)]
    plots = [draw(c.chart).svg if c.chart is not None else None for c in cards]
    page = PAGE.substitute(
        title=in_html(diagnosis.title),
        style=STYLE.read_text(encoding="utf-8"),
        ended=in_html(diagnosis.ended),
        section=diagnosis_section(cards, plots),
        looked=in_html(diagnosis.looked),
        notes="".join(f"<li>{in_html(note)}</li>" for note in diagnosis.notes),
    )
    return write_atomic(path, page.encode("utf-8", "replace"))
