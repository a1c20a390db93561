"""Charts of pages that tests do not look at: each kind is drawn once, by one of all processes of a run of the tests.

To draw all of a page takes half of a tiny run's time. The pages of tests/report are drawn as usual, and so are those
of programs that do not begin as forks (`tests.warm`).
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path

from tests.warm import FOLDER
from verizero.pipeline.files import locked
from verizero.pipeline.report import page
from verizero.pipeline.report.curves import Chart
from verizero.pipeline.report.plots import Plot, draw

_DRAWN: dict[str, Plot] = {}


def draw_once() -> None:
    """Put the first chart of each name on all pages that this process and its forks build."""
    page.draw = _drawn


def _drawn(chart: Chart) -> Plot:
    if FOLDER not in os.environ:  # a program of its own variables
        return draw(chart)
    if chart.name not in _DRAWN:
        folder = Path(os.environ[FOLDER]) / "charts"
        with locked(folder, wait=True):
            if not (kept := folder / f"{chart.name.replace('/', ' ')}.pickle").exists():
                unfinished = kept.with_suffix(".new")  # some of these processes are killed
                unfinished.write_bytes(pickle.dumps(draw(chart)))
                unfinished.rename(kept)
        _DRAWN[chart.name] = pickle.loads(kept.read_bytes())
    return _DRAWN[chart.name]
