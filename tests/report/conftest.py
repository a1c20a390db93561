"""Pages of the report with their own charts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from verizero.pipeline.report import page, plots


@pytest.fixture(scope="module", autouse=True)
def own_charts() -> Iterator[None]:
    """Draw every chart, as nothing else in these tests does (`tests.charts`)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "draw", plots.draw)
        yield
