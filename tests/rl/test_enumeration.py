"""Expected gradients by summing over every group that a tiny policy can sample, against the gradient they stand for."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from pipeline.algorithms.base import load_algorithm
from tests.oracles.enumeration import RESPONSES, Tiny, expected, with_kl

NEAR = {"rtol": 1e-12, "atol": 1e-14}
GRADED = torch.tensor([0.3, 1.0, -0.5, 0.2, 0.9, 0.0, 0.6], dtype=torch.float64)
RIGHT = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
assert len(GRADED) == len(RIGHT) == len(RESPONSES)


@pytest.mark.parametrize("name", ["reinforce", "remax"])
@pytest.mark.parametrize("seed", range(3))
def test_kl_credited_to_go_has_the_same_expected_gradient_and_less_noise(name: str, seed: int) -> None:
    policy, reference = Tiny.of(seed), Tiny.of(seed + 50)
    chances = policy.chances()
    divergence = (chances * (chances / reference.chances().detach()).log()).sum()
    exact = policy.gradient((chances * GRADED).sum() - 0.7 * divergence)
    fill = with_kl(policy, reference)

    def of(kl_credit: str):  # type: ignore[no-untyped-def]
        _, parts = load_algorithm(name, {"kl_coef": 0.7, "kl_credit": kl_credit})
        return expected(
            parts,
            policy,
            GRADED,
            1,
            lambda inputs, rows: dataclasses.replace(
                fill(inputs, rows), greedy_rewards=torch.full_like(inputs.rewards, 0.4)
            ),
        )

    to_go, response = of("to_go"), of("response")
    assert torch.allclose(to_go.mean, exact, **NEAR)
    assert torch.allclose(response.mean, exact, **NEAR)
    assert to_go.variance != pytest.approx(response.variance, rel=1e-3)
    assert load_algorithm(name)[0].kl_credit == "to_go"  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_max_rl_follows_the_likelihood_of_a_right_answer_to_the_order_of_the_group(size: int) -> None:
    """Its gradient is that of -sum_(k < size) (1 - p)^k / k, which is log p for groups without end."""
    policy = Tiny.of(1)
    right = (policy.chances() * RIGHT).sum()
    orders = range(1, size)
    exact = policy.gradient(-sum(((1 - right) ** k / k for k in orders), start=torch.zeros(())))
    found = expected(load_algorithm("max_rl")[1], policy, RIGHT, size).mean
    assert torch.allclose(found, exact, **NEAR)


@pytest.mark.parametrize(("size", "k"), [(2, None), (3, None), (4, None), (4, 2), (4, 3)])
def test_pass_at_k_follows_the_expected_best_of_k(size: int, k: int | None) -> None:
    policy = Tiny.of(2)
    chances = policy.chances()
    tuples = torch.tensor(list(itertools.product(range(len(RESPONSES)), repeat=size if k is None else k)))
    best = (chances[tuples].prod(dim=1) * GRADED[tuples].max(dim=1).values).sum()
    found = expected(load_algorithm("pass_at_k", {"k": k})[1], policy, GRADED, size).mean
    assert torch.allclose(found * size, policy.gradient(best), **NEAR)
