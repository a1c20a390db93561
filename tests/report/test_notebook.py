"""Progress as a table in a notebook."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from verizero.pipeline.report.notebook import EVERY_S, LiveTable, in_notebook
from verizero.pipeline.report.progress import for_terminal


class Handle:
    def __init__(self) -> None:
        self.pictures: list[str] = []

    def show(self, value: Any) -> Handle:
        self.update(value)
        return self

    def update(self, value: Any) -> None:
        self.pictures.append(value._repr_html_())


def test_rows_numbers_and_lines_are_in_one_output_that_is_seldom_replaced() -> None:
    now, handle = [0.0], Handle()
    table = LiveTable(handle.show, lambda: now[0])
    table.begin("round 1", 0, 100)
    for step in range(1, 101):
        now[0] += EVERY_S / 10
        table.under_way("round 1 step: generate", step, 100)
        table.advance(step, {"reward": step / 100})
    table.say("after <b>round</b> 1")
    table.close()
    assert len(handle.pictures) <= 100 / 10 + 4
    last = handle.pictures[-1]
    for text in ("round 1", "100/100", "reward 1", "3 s", "after &lt;b&gt;round&lt;/b&gt; 1"):
        assert f">{text}<" in last
    assert any("generate, 30% of 100 responses" in p for p in handle.pictures)
    assert "generate" not in last
    assert repr(table) == "round 1  100/100  reward 1  3 s\nafter <b>round</b> 1"


@pytest.mark.parametrize(
    ("shell", "expected"), [(None, False), (SimpleNamespace(), False), (SimpleNamespace(kernel=1), True)]
)
def test_the_table_is_for_kernels_of_notebooks(shell: Any, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook() is expected
    progress = for_terminal(beats=False)
    assert isinstance(progress, LiveTable) is expected
    progress.close()
