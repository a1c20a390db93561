"""Names to losses: what is refused, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verizero.pipeline import registry
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.errors import ConfigError, UnknownName
from verizero.pipeline.preferences.base import load_preference

RECIPES = Path(__file__).resolve().parents[2] / "configs" / "preferences"
LOSSES = (
    *(
        "aot",
        "apo_down",
        "apo_zero",
        "apo_zero_unpaired",
        "bco",
        "cpo",
        "discopop",
        "dpo",
        "exo",
        "hinge",
        "ipo",
        "kto",
    ),
    *("mpo", "nca", "orpo", "robust", "simpo", "sppo"),
)


def test_each_loss_has_a_source_and_says_what_departs() -> None:
    names = registry.names("preferences")
    assert set(LOSSES) <= set(names)
    for name in names:
        module = registry.find("preferences", name)
        assert module.SOURCE.startswith("arXiv:")
        assert isinstance(module.DEPARTURES, tuple)
        load_preference(name)


def test_an_unknown_name_answers_with_the_near_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean dpo"):
        load_preference("ddpo")


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("dpo", {"beta": 0}, "beta = 0"),
        ("dpo", {"beta": -0.1}, "beta = -0.1"),
        ("dpo", {"beta": float("nan")}, "beta = nan"),
        ("dpo", {"label_smoothing": 0.5}, "label_smoothing = 0.5"),
        ("kto", {"desirable_weight": 0}, "desirable_weight = 0"),
        ("simpo", {"gamma": -1}, "gamma = -1"),
        ("ipo", {"bta": 0.1}, "no parameter 'bta'; did you mean beta"),
        ("robust", {"label_smoothing": 0.5}, "label_smoothing = 0.5"),
        ("exo", {"label_smoothing": 0}, "label_smoothing = 0"),
        ("cpo", {"nll_coef": -1}, "nll_coef = -1"),
        ("sppo", {"beta": 0}, "beta = 0"),
        ("dpo", {"f_divergence": "kl"}, "f_divergence = 'kl'.*'reverse_kl'"),
        ("dpo", {"f_divergence": "alpha_divergence"}, "f_divergence=alpha_divergence needs f_alpha; set f_alpha: 0.5"),
        ("hinge", {"f_alpha": 0.5}, "f_alpha=0.5 is read with f_divergence=alpha_divergence alone.*or drop f_alpha"),
        ("ipo", {"f_divergence": "alpha_divergence", "f_alpha": 1.5}, "f_alpha = 1.5"),
        ("sppo", {"f_divergence": "forward_kl"}, "no parameter 'f_divergence'"),
        ("kto", {"wpo": True}, "no parameter 'wpo'"),
        ("aot", {"wpo": True}, "no parameter 'wpo'"),
        ("dpo", {"ld_alpha": 1.5}, "ld_alpha = 1.5"),
        ("discopop", {"tau": 2}, "tau = 2"),
        ("mpo", {"losses": []}, "losses = "),
        ("mpo", {"losses": [{"name": "dpo", "weight": 0}]}, "a name and a weight above 0"),
        ("mpo", {"losses": [{"name": "dpo", "bta": 1}]}, "no parameter 'bta'; did you mean beta"),
        ("mpo", {"losses": [{"name": "kto"}]}, "losses of pairs with a reference.*'kto'"),
        ("mpo", {"losses": [{"name": "aot"}]}, "losses of pairs with a reference.*'aot'"),
        ("mpo", {"losses": [{"name": "simpo"}]}, "losses of pairs with a reference.*'simpo'"),
        ("mpo", {"losses": [{"name": "dpo", "ld_alpha": 0.5}]}, "without wpo and ld_alpha of their own"),
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
    assert not any(p.needs_weights for p in needs.values())
    assert {n for n, p in needs.items() if p.sorts_pairs} == {"aot"}
    assert load_preference("dpo", {"ld_alpha": 0.0})[0].tail_weight == 0.0
    pairs = [n for n, p in needs.items() if not p.from_labels and not p.sorts_pairs]
    assert all(load_preference(n, {"wpo": True})[0].needs_weights for n in pairs)


def test_each_loss_has_a_recipe_and_each_recipe_of_a_loss_is_named_after_it() -> None:
    recipes = {path.stem: load_recipe(path) for path in sorted(RECIPES.glob("*.yaml"))}
    losses = {n: (c.preference or c.online_preference).loss["name"] for n, c in recipes.items()}  # type: ignore[union-attr]
    assert {losses[n] for n in losses} == set(LOSSES)
    assert all(losses[n] == n for n in LOSSES)
