"""Every preference loss against a slow double, its gradient against finite differences; and that of reward models."""

import math

import pytest
import torch

from tests.oracles.preferences import PAIRWISE, Side, kto, mean_loss
from tests.preferences.sides import VARIANTS, Random, Z, gradient, losses_of
from verizero.pipeline.preferences.base import Responses, Sides, load_preference, minus_log_sigmoid
from verizero.pipeline.rl.bradley_terry import bradley_terry_loss, calibration_error


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_loss_is_the_doubles(name, params):
    for seed in range(3):
        batch = Random(seed)
        wanted = mean_loss(name, *batch.lists(), Z, params)
        assert float(losses_of(name, params, batch).values.mean()) == pytest.approx(wanted, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_gradient_is_the_doubles_finite_differences(name, params):
    batch = Random(5)
    found = gradient(name, params, batch)
    step = 1e-6
    for i, t in [(0, 0), (1, 0), (3, 0), (4, 0), (5, 0), (7, 0), (0, 3), (6, 2)]:
        shifted = []
        for sign in (1, -1):
            moved = batch.lp.clone()
            moved[i, t] += sign * step
            shifted.append(mean_loss(name, *batch.lists(moved), Z, params))
        assert float(found[i, t]) == pytest.approx((shifted[0] - shifted[1]) / (2 * step), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(("name", "z"), [("kto", Z), ("apo_zero_unpaired", 0.0)])
def test_losses_of_labels_take_any_number_of_each_side(name, z):
    for good, bad in ((5, 0), (0, 3), (1, 4)):
        batch = Random(1, good, bad)
        values = losses_of(name, {}, batch).values
        assert len(values) == good + bad
        assert float(values.mean()) == pytest.approx(kto(*batch.lists(), z), rel=1e-12)


def test_a_response_better_than_its_reference_by_far_loses_nothing_more():
    checked, loss = load_preference("kto")
    sides = Sides(_side(500.0), _side(-500.0), 0.0)
    assert float(loss(checked, sides).values.abs().max()) < 1e-12


@pytest.mark.parametrize("name", PAIRWISE)
def test_a_far_margin_stays_finite_with_its_gradient(name):
    checked, loss = load_preference(name)
    far = 1e4 if name in ("simpo", "orpo") else 1e5
    for lp in ((-far, -1.0), (-1.0, -far), (-1e-12, -1e-12), (0.0, -far)):
        chosen, rejected = (torch.tensor([x], requires_grad=True) for x in lp)
        one = torch.ones(1)
        zero = torch.zeros(1)
        value = loss(checked, Sides(Responses(chosen, one, zero), Responses(rejected, one, zero))).values.sum()
        value.backward()
        assert math.isfinite(float(value.detach()))
        assert bool(torch.isfinite(chosen.grad).all())
        assert bool(torch.isfinite(rejected.grad).all())


def test_minus_log_sigmoid_is_exact_where_the_sigmoid_is_not():
    found = minus_log_sigmoid(torch.tensor([-1000.0, 0.0, 40.0], dtype=torch.float64))
    assert found.tolist() == pytest.approx([1000.0, math.log(2), math.exp(-40)], rel=1e-12)


def test_orpo_where_the_policy_is_certain_has_the_odds_of_the_bound():
    checked, loss = load_preference("orpo", {"beta": 1.0})
    bound = Side([-1e-6], [0.0])
    wanted = mean_loss("orpo", [bound], [Side([-2.0], [0.0])], 0.0, {"beta": 1.0})
    sides = Sides(_side(0.0), _side(-2.0))
    assert float(loss(checked, sides).values) == pytest.approx(wanted, abs=2e-6)


def _side(lp):
    return Responses(torch.tensor([lp], dtype=torch.float64), *torch.tensor([[1.0], [0.0]], dtype=torch.float64))


def rewards(seed, count=7):
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(count, generator=draw, dtype=torch.float64) * 3 for _ in range(2))


@pytest.mark.parametrize("seed", range(3))
def test_the_formula_and_its_gradient(seed):
    chosen, rejected = (x.requires_grad_() for x in rewards(seed))
    loss = bradley_terry_loss(chosen, rejected, 7)
    slow = sum(math.log1p(math.exp(-(w - r))) for w, r in zip(chosen.tolist(), rejected.tolist(), strict=True)) / 7
    assert float(loss.detach()) == pytest.approx(slow, rel=1e-12)
    assert torch.autograd.gradcheck(lambda w, r: bradley_terry_loss(w, r, 7), (chosen, rejected))


def by_hand(margins, bins):
    total = 0.0
    for b in range(bins):
        low, high = 0.5 + b / bins / 2, 0.5 + (b + 1) / bins / 2
        own = [m for m in margins if low <= 1 / (1 + math.exp(-abs(m))) < high or (b == bins - 1 and abs(m) > 36)]
        if own:
            confidence = sum(1 / (1 + math.exp(-abs(m))) for m in own) / len(own)
            right = sum((m > 0) + 0.5 * (m == 0) for m in own) / len(own)
            total += len(own) / len(margins) * abs(right - confidence)
    return total


@pytest.mark.parametrize("bins", [1, 4, 10])
def test_calibration_is_that_counted_by_hand(bins):
    margins = [*rewards(5, 200)[0].tolist(), 0.0, 50.0, -50.0]
    assert calibration_error(torch.tensor(margins), bins) == pytest.approx(by_hand(margins, bins), abs=1e-9)
