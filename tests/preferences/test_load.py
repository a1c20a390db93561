"""Names to losses: what is refused, and how."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import registry
from pipeline.errors import ConfigError, UnknownName
from pipeline.preferences.base import load_preference


def test_each_loss_has_a_source_and_says_what_departs() -> None:
    names = registry.names("preferences")
    assert {"dpo", "ipo", "kto", "orpo", "simpo"} <= set(names)
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
    ],
)
def test_a_wrong_parameter_is_named(name: str, params: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_preference(name, params)


def test_what_each_loss_needs() -> None:
    needs = {n: load_preference(n)[0] for n in ("dpo", "ipo", "kto", "orpo", "simpo")}
    assert {n for n, p in needs.items() if p.needs_reference} == {"dpo", "ipo", "kto"}
    assert {n for n, p in needs.items() if p.from_labels} == {"kto"}
    assert {n for n, p in needs.items() if p.needs_divergence} == {"kto"}
