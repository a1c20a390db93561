"""Fixtures of the tests that run whole stages."""

from __future__ import annotations

import pytest

from tests.stages.charts import draw_once


@pytest.fixture(autouse=True)
def charts_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this process draw each kind of chart once: to draw all takes a third of a tiny run's time."""
    draw_once(monkeypatch)
