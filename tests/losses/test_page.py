"""docs/losses.md has the values of TRL as installed, and a reason for each difference."""

from __future__ import annotations

import runpy
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.losses.cases import PAIRS, RL, Case
from tests.source import ROOT

TEXT = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
make: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "make_losses.py"))


@pytest.mark.parametrize("case", PAIRS, ids=lambda c: c.name)
def test_a_loss_of_pairs_is_what_the_page_says(case: Case, tmp_path: Path) -> None:
    assert make["row"](case, tmp_path) in TEXT.splitlines(), "make docs"


@pytest.mark.integration
@pytest.mark.parametrize("case", RL, ids=lambda c: c.name)
@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_a_loss_of_rl_is_what_the_page_says(case: Case, tmp_path: Path) -> None:
    assert make["row"](case, tmp_path) in TEXT.splitlines(), "make docs"


def test_the_page_is_of_the_installed_trl_and_explains_what_differs() -> None:
    assert f"TRL {version('trl')} as installed" in TEXT
    assert "not explained" not in TEXT
    assert len(RL) + len(PAIRS) >= 25
    assert sum(line.startswith("| ") for line in TEXT.splitlines()) == len(RL) + len(PAIRS) + 2
