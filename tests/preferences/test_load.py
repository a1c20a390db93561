"""Names to losses: what is refused, and how."""

from pathlib import Path
from typing import Any

import pytest

from verizero.pipeline import registry
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.preferences.base import load_preference

RECIPES = Path(__file__).resolve().parents[2] / "configs" / "preferences"
PAIRS = {"apo_down", "apo_zero", "bco", "cpo", "discopop", "dpo", "exo", "hinge", "ipo", "nca", "orpo", "robust"}
LOSSES = PAIRS | {"simpo", "sppo", "kto", "apo_zero_unpaired"}


def test_each_loss_has_a_source_and_says_what_departs() -> None:
    names = registry.names("preferences")
    assert set(names) >= LOSSES
    for name in names:
        module = registry.find("preferences", name)
        assert module.SOURCE.startswith("arXiv:")
        assert isinstance(module.DEPARTURES, tuple)
        load_preference(name)


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("dpo", {"beta": float("nan")}, "beta = nan"),
        ("dpo", {"label_smoothing": 0.5}, "label_smoothing = 0.5"),
        ("kto", {"desirable_weight": 0}, "desirable_weight = 0"),
        ("simpo", {"gamma": -1}, "gamma = -1"),
        ("ipo", {"bta": 0.1}, "no parameter 'bta'; did you mean beta"),
        ("robust", {"label_smoothing": 0.5}, "label_smoothing = 0.5"),
        ("exo", {"label_smoothing": 0}, "label_smoothing = 0"),
        ("cpo", {"nll_coef": -1}, "nll_coef = -1"),
        ("sppo", {"beta": 0}, "beta = 0"),
        ("sppo", {"label_smoothing": 0.1}, "no parameter 'label_smoothing'"),
        ("dpo", {"wpo": True}, "no parameter 'wpo'"),
        ("discopop", {"tau": 2}, "tau = 2"),
    ],
)
def test_a_wrong_parameter_is_named(name: str, params: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_preference(name, params)


def test_what_each_loss_needs() -> None:
    needs = {n: load_preference(n)[0] for n in LOSSES}
    assert {n for n, p in needs.items() if not p.needs_reference} == {"cpo", "orpo", "simpo"}
    assert {n for n, p in needs.items() if p.from_labels} == {"kto", "apo_zero_unpaired"}
    assert {n for n, p in needs.items() if p.needs_divergence} == {"kto"}


def test_each_loss_has_a_recipe_and_each_recipe_of_a_loss_is_named_after_it() -> None:
    recipes = {path.stem: load_recipe(path) for path in sorted(RECIPES.glob("*.yaml"))}
    losses = {n: (c.preference or c.online_preference).loss["name"] for n, c in recipes.items()}
    assert {losses[n] for n in losses} == LOSSES
    assert all(losses[n] == n for n in LOSSES)
