"""Expected gradients by summing over every group that a tiny policy can sample, against the gradient they stand for."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from tests.oracles.enumeration import MASK, RESPONSES, Expected, Tiny, expected, with_kl
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages

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

    def of(kl_credit: str) -> Expected:
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


def norms_of(policy: Tiny) -> torch.Tensor:
    """[7, 2]: the score norms of each response's tokens."""
    return 1 - 2 * policy.token_logprobs().detach().exp() + policy.square_sums()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_optimal_token_baseline_changes_no_expected_gradient(size: int) -> None:
    policy = Tiny.of(3, scale=2.0)
    norms = norms_of(policy)
    exact = policy.gradient((policy.chances() * GRADED).sum())

    def of(name: str, **params: Any) -> torch.Tensor:
        def fill(inputs: AdvantageInputs, rows: torch.Tensor) -> AdvantageInputs:
            return dataclasses.replace(inputs, score_norms=norms[rows])

        return expected(load_algorithm(name, params)[1], policy, GRADED, size, fill).mean

    assert torch.allclose(of("otb"), exact, **NEAR)


@pytest.mark.parametrize("seed", range(6))
def test_in_a_large_group_the_optimal_token_baseline_is_less_noisy_than_the_mean(seed: int) -> None:
    """One response among 4,000 others that are distributed as the policy is, for each response that it may be."""
    policy = Tiny.of(seed)
    chances, scores = policy.chances().detach(), policy.scores()
    others = torch.repeat_interleave(torch.arange(len(RESPONSES)), (4000 * chances).round().long())
    rows = torch.cat([torch.cat([torch.tensor([own]), others]) for own in range(len(RESPONSES))])
    group_ids = torch.arange(len(RESPONSES)).repeat_interleave(1 + len(others))
    inputs = AdvantageInputs(RIGHT[rows], group_ids, MASK[rows], score_norms=norms_of(policy)[rows])

    def variance(name: str) -> float:
        parts = load_algorithm(name, {"kl_coef": 0})[1]
        advantages = compute_advantages(parts, inputs).advantages[:: 1 + len(others)]  # of the first of each group
        estimates = (advantages.unsqueeze(-1) * scores).sum(1)
        centred = estimates - (chances.unsqueeze(1) * estimates).sum(0)
        return float((chances * (centred**2).sum(1)).sum())

    assert variance("otb") < 0.99 * variance("rloo")
