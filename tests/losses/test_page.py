"""docs/losses.md has the values of TRL as installed, and a reason for each difference."""

import re
import runpy
from importlib.metadata import version

import pytest

from tests.losses.cases import PAIRS, RL
from tests.source import ROOT

TEXT = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
make = runpy.run_path(str(ROOT / "docs" / "make_losses.py"))
NUMBER = re.compile(r"(-?\d+\.\d+(?:e-\d+)?|\de-\d+)")


def assert_on_page(row):
    """Assert that the page has the row: the same words, and numbers that another order of sums explains."""
    line = next((line for line in TEXT.splitlines() if line.split(" | ")[0] == row.split(" | ")[0]), "")
    mine, shown = NUMBER.split(row), NUMBER.split(line)
    assert mine[::2] == shown[::2], "make docs"
    for before, number, theirs, after in zip(mine[::2], mine[1::2], shown[1::2], mine[2::2], strict=False):
        # Five digits are shown, and one of a distance. TRL has rewards in float32: 1e-6 is eight times its eps.
        near = {"rel": 1.0} if after.startswith(" apart") else {"rel": 1e-4, "abs": 1e-6}
        assert float(number) == pytest.approx(float(theirs), **near), f"make docs: {before[-40:]}{number}"


@pytest.mark.parametrize("case", PAIRS, ids=lambda c: c.name)
def test_a_loss_of_pairs_is_what_the_page_says(case, tmp_path):
    assert_on_page(make["row"](case, tmp_path))


@pytest.mark.run
@pytest.mark.parametrize("case", RL, ids=lambda c: c.name)
@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_a_loss_of_rl_is_what_the_page_says(case, tmp_path):
    assert_on_page(make["row"](case, tmp_path))


def test_the_page_is_of_the_installed_trl_and_explains_what_differs():
    assert f"TRL {version('trl')} as installed" in TEXT
    assert "not explained" not in TEXT
    assert len(RL) + len(PAIRS) >= 25
    assert sum(line.startswith("| ") for line in TEXT.splitlines()) == len(RL) + len(PAIRS) + 2
