"""Losses that are another loss at some setting, and what each promises of its own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.preferences.sides import LONGEST, Random, gradient, losses_of
from verizero.pipeline.preferences.base import Responses, Sides, load_preference

Named = tuple[str, dict[str, Any]]


def assert_equal(one: Named, other: Named, batch: Random, factor: float = 1.0) -> None:
    """Values and gradient of the first are those of the second times the factor."""
    values = [losses_of(*named, batch).values.mean() for named in (one, other)]
    assert float(values[0]) == pytest.approx(factor * float(values[1]), rel=1e-12)
    torch.testing.assert_close(gradient(*one, batch), factor * gradient(*other, batch), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("seed", range(3))
class TestIdentities:
    def test_robust_without_noise_is_dpo(self, seed: int) -> None:
        assert_equal(("robust", {"beta": 0.4, "label_smoothing": 0.0}), ("dpo", {"beta": 0.4}), Random(seed))

    @pytest.mark.parametrize("length", [1, LONGEST])
    def test_on_equal_lengths_length_average_is_another_beta(self, seed: int, length: int) -> None:
        batch = Random(seed)
        batch.mask = (torch.arange(LONGEST) < length).expand(batch.mask.shape)
        averaged: dict[str, Any] = {"beta": 2.0, "length_average": True}
        assert_equal(("dpo", averaged), ("dpo", {"beta": 2.0 / length}), batch)

    def test_length_average_differs_on_other_lengths(self, seed: int) -> None:
        averaged = losses_of("dpo", {"length_average": True}, Random(seed)).values
        assert not torch.allclose(averaged, losses_of("dpo", {}, Random(seed)).values, atol=1e-3)

    def test_cpo_is_dpo_against_a_reference_that_calls_all_alike(self, seed: int) -> None:
        batch = Random(seed)
        batch.ref = torch.zeros_like(batch.ref)
        assert_equal(("cpo", {"beta": 0.4}), ("dpo", {"beta": 0.4, "nll_coef": 1.0}), batch)

    def test_apo_zero_of_single_responses_is_half_that_of_pairs(self, seed: int) -> None:
        assert_equal(("apo_zero", {"beta": 0.4}), ("apo_zero_unpaired", {"beta": 0.4}), Random(seed), 2.0)


def turned(batch: Random) -> Random:
    """The batch with its sides exchanged."""
    other = Random(0)
    for name in ("lp", "ref", "mask"):
        value = getattr(batch, name)
        setattr(other, name, torch.cat([value[4:], value[:4]]))
    return other


@pytest.mark.parametrize("noise", [0.1, 0.4])
def test_robust_is_dpo_in_the_mean_over_pairs_that_are_turned_at_random(noise: float) -> None:
    batch = Random(3)
    params = {"beta": 0.4, "label_smoothing": noise}
    right, wrong = losses_of("robust", params, batch).values, losses_of("robust", params, turned(batch)).values
    clean = losses_of("dpo", {"beta": 0.4}, batch).values
    torch.testing.assert_close((1 - noise) * right + noise * wrong, clean, rtol=1e-12, atol=1e-12)


def solved(name: str, params: dict[str, Any], chosen: float, rejected: float) -> tuple[float, float, float]:
    """Value and derivatives at two log-ratios."""
    checked, loss = load_preference(name, params)
    sides = [torch.tensor([x], dtype=torch.float64, requires_grad=True) for x in (chosen, rejected)]
    still = torch.tensor([1.0], dtype=torch.float64), torch.tensor([0.0], dtype=torch.float64)
    value = loss(checked, Sides(*(Responses(x, *still) for x in sides))).values.sum()
    value.backward()
    chosen_slope, rejected_slope = (0.0 if x.grad is None else float(x.grad) for x in sides)
    return float(value.detach()), chosen_slope, rejected_slope


@pytest.mark.parametrize(
    ("name", "params", "chosen", "rejected", "least"),
    [
        ("exo", {"beta": 0.5, "label_smoothing": 0.2}, 2 * math.log(4), 0.0, 0.0),
        ("sppo", {"beta": 0.1}, 5.0, -5.0, 0.0),
        ("hinge", {"beta": 0.1}, 6.0, -5.0, 0.0),
        ("nca", {"beta": 1.0}, math.log(2), -1e3, 1.5 * math.log(3) - math.log(2)),
    ],
)
def test_where_a_loss_is_least(name: str, params: dict[str, Any], chosen: float, rejected: float, least: float) -> None:
    assert solved(name, params, chosen, rejected) == pytest.approx((least, 0.0, 0.0), abs=1e-12)


@pytest.mark.parametrize("tau", [0.05, 0.2])
def test_discopop_pushes_equal_responses_apart_in_the_wrong_direction_unless_tau_is_large(tau: float) -> None:
    slope = (1 - math.log(2)) / (4 * tau) - 3 / 4
    assert solved("discopop", {"beta": 1.0, "tau": tau}, 0.0, 0.0)[1:] == pytest.approx((slope, -slope))
    assert (slope > 0) == (tau == 0.05)


@pytest.mark.parametrize("h", [-9.0, 0.0, 9.0])
def test_apo_zero_raises_the_chosen_side_and_apo_down_lowers_it_once_the_pair_is_apart(h: float) -> None:
    """Training moves a log-ratio against its derivative."""
    _, chosen, rejected = solved("apo_zero", {}, h, h)
    assert chosen < 0 < rejected
    _, chosen, rejected = solved("apo_down", {}, h, h - 90.0)
    assert chosen > rejected > 0


def test_nca_moves_the_chosen_side_to_a_place_and_not_without_end() -> None:
    assert solved("nca", {}, 6.0, 0.0)[1] < 0 < solved("nca", {}, 8.0, 0.0)[1]
    assert solved("dpo", {}, 8.0, 0.0)[1] < 0
