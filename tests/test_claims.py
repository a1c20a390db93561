"""Claims: the rules judge as they say, and a claim runs from start to page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.claims.__main__ import RESULTS, all_claims, report, values_of
from benchmarks.claims.claim import above, within
from benchmarks.claims.page import number, write_page
from tests.stages.tiny import FEW_SHOWN
from tests.warm import warm
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.report.intervals import Estimate, over_seeds

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(1.8, 2.0, "holds"), (1.6, 2.0, "not at this scale"), (0.9, 1.5, "not at this scale"), (0.1, 0.9, "fails")],
)
def test_a_claim_of_more_is_judged_by_its_whole_interval(low: float, high: float, outcome: str) -> None:
    assert above(1.7, fails_below=1.0)(Estimate((low + high) / 2, low, high)) == outcome


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(-0.04, 0.03, "holds"), (-0.06, 0.01, "not at this scale"), (-0.2, -0.06, "fails"), (0.06, 0.1, "fails")],
)
def test_a_claim_of_equality_is_judged_by_its_whole_interval(low: float, high: float, outcome: str) -> None:
    assert within(0.05)(Estimate((low + high) / 2, low, high)) == outcome


def test_every_claim_names_recipes_that_load_and_is_on_the_page() -> None:
    page = (ROOT / "docs" / "claims.md").read_text()
    for name, claim in all_claims().items():
        assert claim.name == name
        assert claim.seeds >= 3
        assert claim.title in page
        assert claim.rule in page
        for arm in claim.arms:
            load_recipe(ROOT / arm.recipe, list(arm.changes))


SHORT = (
    *("sft.steps=3", "sft.batch_size=8", "rl.rounds=1", "rl.steps_per_round=1", "rl.prompts_per_step=8"),
    *("rl.group_size=2", "rl.select.keep=all", "rollout.max_response_tokens=8", "evaluation.limit=4", "evaluation.k=2"),
    f"data.train={FEW_SHOWN}",
)


def values_of_short_runs(name: str, folder: Path) -> list[float]:
    return values_of(all_claims()[name], folder, 2, SHORT)


@pytest.mark.integration
def test_a_claim_runs_from_start_to_page(tmp_path: Path) -> None:
    claims = all_claims()
    values = warm().call(values_of_short_runs, "spurious_rewards", tmp_path)
    assert len(values) == 2
    assert all(-1 <= v <= 1 for v in values)
    report(claims["spurious_rewards"], values, tmp_path)
    page = tmp_path / "claims.md"
    write_page(page, claims, tmp_path)
    said = page.read_text()
    assert said.count("not run") == 2 * (len(claims) - 1)
    assert claims["spurious_rewards"].title in (tmp_path / "claims.svg").read_text()


@pytest.mark.integration
def test_the_page_is_what_the_results_say(tmp_path: Path) -> None:
    write_page(tmp_path / "claims.md", all_claims(), RESULTS)
    assert (tmp_path / "claims.md").read_text() == (ROOT / "docs" / "claims.md").read_text()


def test_each_verdict_follows_from_the_values_of_its_seeds() -> None:
    claims = all_claims()
    files = sorted(RESULTS.glob("*.json"))
    assert len(files) >= 10
    for file in files:
        result, claim = json.loads(file.read_text()), claims[file.stem]
        assert len(result["values"]) == claim.seeds
        seen = over_seeds(result["values"])
        assert claim.judge(seen) == result["outcome"]
        assert (seen.value, seen.low, seen.high) == (result["mean"], result["low"], result["high"])


def test_a_number_that_is_small_is_not_shown_as_zero() -> None:
    assert [number(x) for x in (0.0, 0.0123, -1.5, 2e-7)] == ["0.000", "0.012", "-1.500", "2.0e-07"]
