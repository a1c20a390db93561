"""Whole runs without their pages, for tests that read none."""

import pytest


@pytest.fixture
def pageless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's page is drawn from its files in a second; here it is left out."""
    monkeypatch.setattr("verizero.pipeline.whole_run.cards_of", lambda *_: ())
    monkeypatch.setattr("verizero.pipeline.whole_run.build_page", lambda *_: None)
