"""The findings of recorded runs as a page shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.checks.recorded import OWN, unpack
from verizero.pipeline.checks.cause import CAUSES
from verizero.pipeline.checks.page import cards_of
from verizero.pipeline.report.page import build_page


def run_of(name: str, folder: Path) -> Path:
    return unpack(OWN / f"{name}-0.tar.xz", folder)


@pytest.mark.run
@pytest.mark.parametrize(
    ("name", "title", "x_label"),
    [
        ("rate_times_ten", "kl/k1", "RL step"),
        ("six_held_out_tasks", "Held-out pass@1", "evaluation"),
        ("answers_of_the_next_row", "reward/mean/sums", "RL step"),
    ],
)
def test_the_curve_is_that_of_the_number_that_shows_the_cause(
    name: str, title: str, x_label: str, tmp_path: Path
) -> None:
    run = run_of(name, tmp_path)
    cards = cards_of(run, pytest.fail)
    assert cards
    chart = cards[0].chart
    assert chart is not None
    assert (chart.title, chart.x_label) == (title, x_label)
    assert len(chart.x) == len(chart.series[0].y) > 1
    text = build_page(run, cards).read_text(encoding="utf-8")
    assert all(f'data-chart="{c.chart.name}"' in text for c in cards if c.chart)


def test_a_rule_that_fails_is_named_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    def broken(run: object) -> None:
        raise ZeroDivisionError("division by zero")

    cause = CAUSES["learning_rate_high"]
    monkeypatch.setitem(CAUSES, cause.name, replace(cause, rules=(broken,)))
    run = run_of("rate_times_ten", tmp_path)
    cards = cards_of(run, heard.append)
    assert heard == [
        "warning: the rule learning_rate_high of the diagnosis failed: ZeroDivisionError: division by zero"
    ]
    assert cards is not None
    assert "learning_rate_high" not in {c.cause for c in cards}


def test_files_that_cannot_be_read_leave_the_page_without_a_diagnosis(tmp_path: Path) -> None:
    heard: list[str] = []
    run = run_of("healthy", tmp_path)
    (run / "recipe.yaml").write_text("a: [")
    assert cards_of(run, heard.append) is None
    assert len(heard) == 1
    assert "could not be diagnosed: RunError" in heard[0]
