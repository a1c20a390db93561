"""DPPO: which tokens stop, and its gradient against those of the codes that it comes from."""

from __future__ import annotations

import math

import pytest
import torch

from tests.oracles.rl_batches import pad, random_rows, solve
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.rl.loss import LossInputs
from verizero.pipeline.rl.parts import Parts


def parts_of(name: str, **params: object) -> Parts:
    return load_algorithm(name, params)[1].resolve(9)


def one_row(pairs: list[tuple[float, float]], advantages: list[float]) -> LossInputs:
    """Tokens of these (probability now, probability at batch start)."""
    now, old = (
        torch.tensor([[math.log(p) for p in column]], dtype=torch.float64) for column in zip(*pairs, strict=True)
    )
    return LossInputs(now, torch.tensor([advantages], dtype=torch.float64), torch.ones_like(now), old)


@pytest.mark.parametrize(
    ("divergence", "inside", "outside"),
    [
        # from 0.5 by the total variation of 0.1, and by the kl of 0.0204 that the same step has
        ("tv", (0.5999, 0.4001), (0.6001, 0.3999)),
        ("kl", (0.5989, 0.4011), (0.6001, 0.3999)),
    ],
)
def test_a_token_stops_just_outside_the_threshold_and_where_its_advantage_pushes(
    divergence: str, inside: tuple[float, float], outside: tuple[float, float]
) -> None:
    size = 0.1 if divergence == "tv" else -0.5 * math.log(4 * 0.6 * 0.4)
    parts = parts_of("dppo", divergence=divergence, threshold_low=size, threshold_high=size)
    for (up, down), stops in ((inside, False), (outside, True)):
        solved = solve(parts, one_row([(up, 0.5), (down, 0.5)] * 2, [1.0, -1.0, -1.0, 1.0]))
        still = [value == 0.0 for value in solved.gradient[0].tolist()]
        assert still == [stops, stops, False, False]  # the last two are pushed back to where they came from
        assert solved.metrics["masked/stopped"] == (0.5 if stops else 0.0)


def test_a_rare_token_may_multiply_and_a_sure_one_may_not_fall_far() -> None:
    """The reason for DPPO: PPO's clip of 0.2 stops the first and not the second."""
    solved = solve(parts_of("dppo"), one_row([(0.01, 0.001), (0.81, 0.99)], [1.0, -1.0]))
    assert solved.gradient[0, 0] != 0
    assert solved.gradient[0, 1] == 0
    clipped = solve(parts_of("dr_grpo"), one_row([(0.01, 0.001), (0.81, 0.99)], [1.0, -1.0]))
    assert clipped.gradient[0, 0] == 0
    assert clipped.gradient[0, 1] != 0


def test_a_certain_token_is_no_division_by_0() -> None:
    for divergence in ("tv", "kl"):
        solved = solve(
            parts_of("dppo", divergence=divergence), one_row([(1.0, 1.0), (1.0, 0.5), (0.5, 1.0)], [1.0] * 3)
        )
        assert math.isfinite(solved.loss)
        assert bool(torch.isfinite(solved.gradient).all())
        assert solved.gradient[0, 1] == 0


@pytest.mark.parametrize("seed", range(4))
def test_prime_rls_gradient_is_that_of_its_own_form(seed: int) -> None:
    """Where the ratio itself is differentiated, and the pull is on kept and stopped tokens alike."""
    inputs = pad(random_rows(seed)).inputs
    mask = inputs.response_mask > 0
    parts = parts_of("prime_rl", drift_coef=0.3, threshold_low=0.03, threshold_high=0.02)
    lp, old, advantages = (torch.where(mask, x, 0.0) for x in (inputs.logprobs, inputs.old_logprobs, inputs.advantages))
    lp.requires_grad_()
    moved = lp.exp() - old.exp()
    kept = ~torch.where(advantages > 0, moved > 0.02, moved < -0.03)
    assert 0 < int((mask & ~kept).sum()) < int(mask.sum())
    loss = (torch.where(kept, -advantages, 0.0) * (lp - old).exp() + 0.3 * (lp - old) ** 2)[mask].sum() / mask.sum()
    loss.backward()
    assert torch.allclose(solve(parts, inputs).gradient, lp.grad, rtol=1e-10, atol=1e-15)


def test_the_usual_thresholds_follow_the_divergence() -> None:
    for divergence, usual in (("tv", 0.15), ("kl", 0.05)):
        options = parts_of("dppo", divergence=divergence).surrogate.options
        assert (options["threshold_low"], options["threshold_high"]) == (usual, usual)
    assert parts_of("dppo", threshold_low=0.3).surrogate.options["threshold_high"] == 0.15
