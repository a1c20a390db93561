"""Charts for runs of tests that do not look at them; tests/report does, and runs that are processes draw their own."""

from __future__ import annotations

import pytest

from verizero.pipeline.report import page
from verizero.pipeline.report.curves import Chart
from verizero.pipeline.report.plots import Plot, draw

_DRAWN: dict[str, Plot] = {}


def draw_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the first chart of each name on all pages that this test builds."""
    monkeypatch.setattr(page, "draw", _drawn)


def _drawn(chart: Chart) -> Plot:
    if chart.name not in _DRAWN:
        _DRAWN[chart.name] = draw(chart)
    return _DRAWN[chart.name]
