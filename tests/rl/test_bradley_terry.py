"""The loss of reward models against its formula and TRL's, and calibration against a count by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from verizero.pipeline.rl.bradley_terry import bradley_terry_loss, calibration_error


def rewards(seed: int, count: int = 7) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(count, generator=draw, dtype=torch.float64) * 3 for _ in range(2))


@pytest.mark.parametrize("seed", range(3))
def test_the_formula_and_its_gradient(seed: int) -> None:
    chosen, rejected = (x.requires_grad_() for x in rewards(seed))
    loss = bradley_terry_loss(chosen, rejected, 7)
    slow = sum(math.log1p(math.exp(-(w - r))) for w, r in zip(chosen.tolist(), rejected.tolist(), strict=True)) / 7
    assert float(loss.detach()) == pytest.approx(slow, rel=1e-12)
    assert torch.autograd.gradcheck(lambda w, r: bradley_terry_loss(w, r, 7), (chosen, rejected))


def test_parts_of_a_step_add_up_to_it() -> None:
    chosen, rejected = rewards(1)
    whole = bradley_terry_loss(chosen, rejected, 7)
    parts = bradley_terry_loss(chosen[:2], rejected[:2], 7) + bradley_terry_loss(chosen[2:], rejected[2:], 7)
    torch.testing.assert_close(whole, parts)


def by_hand(margins: list[float], bins: int) -> float:
    """Calibration error, bin by bin."""
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
def test_calibration_is_that_counted_by_hand(bins: int) -> None:
    margins = [*rewards(5, 200)[0].tolist(), 0.0, 50.0, -50.0]
    assert calibration_error(torch.tensor(margins), bins) == pytest.approx(by_hand(margins, bins), abs=1e-9)


def test_calibration_of_models_that_are_right_as_often_as_they_say() -> None:
    margin = math.log(3)  # a confidence of 3/4
    assert calibration_error(torch.tensor([margin, margin, margin, -margin])) == pytest.approx(0, abs=1e-7)
    assert calibration_error(torch.full((4,), 50.0)) == pytest.approx(0, abs=1e-9)
    assert calibration_error(torch.full((4,), -50.0)) == pytest.approx(1)
