"""Claims: the rules judge as they say, and a claim runs from start to verdict."""

import json

import pytest

from benchmarks.claims.__main__ import RESULTS, number, report, values_of
from benchmarks.claims.claims import CLAIMS, above, within
from tests.source import ROOT
from tests.stages.tiny import FEW_SHOWN
from tests.warm import warm
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.report.intervals import Estimate, over_seeds


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(1.8, 2.0, "holds"), (1.6, 2.0, "not at this scale"), (0.9, 1.5, "not at this scale"), (0.1, 0.9, "fails")],
)
def test_a_claim_of_more_is_judged_by_its_whole_interval(low, high, outcome):
    assert above(1.7, fails_below=1.0)(Estimate((low + high) / 2, low, high)) == outcome


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(-0.04, 0.03, "holds"), (-0.06, 0.01, "not at this scale"), (-0.2, -0.06, "fails"), (0.06, 0.1, "fails")],
)
def test_a_claim_of_equality_is_judged_by_its_whole_interval(low, high, outcome):
    assert within(0.05)(Estimate((low + high) / 2, low, high)) == outcome


def test_every_claim_names_recipes_that_load_and_is_on_the_page():
    page = (ROOT / "benchmarks" / "claims" / "claims.md").read_text()
    for name, claim in CLAIMS.items():
        assert claim.name == name
        assert claim.seeds >= 3
        assert claim.title in page
        for changes in claim.arms.values():
            load_recipe(ROOT / claim.recipe, list(changes))


SHORT = (
    *("sft.steps=3", "sft.batch_size=8", "rl.rounds=1", "rl.steps_per_round=1", "rl.prompts_per_step=8"),
    *("rl.group_size=2", "rl.select.keep=all", "rollout.max_response_tokens=8", "evaluation.limit=4", "evaluation.k=2"),
    f"data.train={FEW_SHOWN}",
)


def values_of_short_runs(name, folder):
    return values_of(CLAIMS[name], folder, 2, SHORT)


@pytest.mark.run
@pytest.mark.nightly
def test_a_claim_runs_and_is_judged(tmp_path, capsys):
    claim = CLAIMS["spurious_rewards"]
    values = warm().call(values_of_short_runs, claim.name, tmp_path)
    assert len(values) == 2
    assert all(-1 <= v <= 1 for v in values)
    report(claim, values, tmp_path)
    assert json.loads((tmp_path / "spurious_rewards.json").read_text())["values"] == values
    assert capsys.readouterr().out.startswith(claim.title)


@pytest.mark.parametrize(
    ("name", "value", "outcome"), [("bitwise_on_policy", 0.0, "holds"), ("spurious_rewards", 0.1, "not at this scale")]
)
def test_equal_seeds_have_no_interval(name, value, outcome, tmp_path, capsys):
    report(CLAIMS[name], [value] * 3, tmp_path)
    assert f": {outcome}. {value:.3f} no interval: 3 seeds of the same value" in capsys.readouterr().out


def test_each_verdict_follows_from_the_values_of_its_seeds():
    page = (ROOT / "benchmarks" / "claims" / "claims.md").read_text()
    files = sorted(RESULTS.glob("*.json"))
    assert len(files) >= 10
    for file in files:
        result, claim = json.loads(file.read_text()), CLAIMS[file.stem]
        assert len(result["values"]) == claim.seeds
        seen = over_seeds(result["values"])
        assert claim.judge(seen) == result["outcome"]
        assert f"**{result['outcome']}**: {number(result['mean'])}" in page
        assert (seen.value, seen.low, seen.high) == (result["mean"], result["low"], result["high"])


def test_a_number_that_is_small_is_not_shown_as_zero():
    assert [number(x) for x in (0.0, 0.0123, -1.5, 2e-7)] == ["0.000", "0.012", "-1.500", "2.0e-07"]
