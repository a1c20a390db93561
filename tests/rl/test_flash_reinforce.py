"""FlashREINFORCE as its paper has it: the weight, the gate and the mean of each response; and its baseline."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from tests.oracles import advantages as oracle
from tests.oracles.enumeration import RESPONSES, Tiny
from tests.oracles.rl import Row, binary_kl, mean
from tests.oracles.rl_batches import pad, random_rows, solve
from tests.rl.rewarded import inputs_of, per_response
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages

PARTS = load_algorithm("flash_reinforce")[1]
GATE = 0.02
GATED = load_algorithm("flash_reinforce", {"mismatch_reject": {"mean_binary_kl": GATE}})[1]


def gradient(rows: list[Row]) -> list[list[float]]:
    """The paper's update: -(1/B) m_i A_i (1/T_i) pi / mu at each token; mu sampled, pi is now."""
    out = []
    for row in rows:
        pairs = list(zip(row.gen, row.lp, strict=True))
        admitted = mean([binary_kl(math.exp(mu), math.exp(pi)) for mu, pi in pairs]) <= GATE
        scale = -1 / len(rows) / len(row.lp) if admitted else 0.0
        out.append([scale * a * math.exp(pi - mu) for (mu, pi), a in zip(pairs, row.adv, strict=True)])
    return out


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_is_the_papers_on_fresh_and_on_stale_rows(seed: int, stale: bool) -> None:
    rows = random_rows(seed, num=10, stale=stale)
    padded = pad(rows)
    # with one optimiser step the policy at batch start is the present one
    solved = solve(GATED, dataclasses.replace(padded.inputs, old_logprobs=None))
    wanted = gradient(rows)
    rejected = [row for row in wanted if not any(row)]
    assert 0 < len(rejected) < len(rows)
    for found, row in zip(padded.by_row(solved.gradient), wanted, strict=True):
        assert found == pytest.approx(row, rel=1e-9)
    share = sum(map(len, rejected)) / sum(map(len, wanted))
    assert solved.metrics["masked/rejected"] == pytest.approx(share)
    assert solved.metrics["sequences/trained"] == len(rows)


def test_the_baseline_is_the_mean_of_the_batch_with_one_response_a_prompt() -> None:
    rewards = [1.0, 0.0, 0.25, 1.0]
    inputs = inputs_of(rewards, [0, 1, 2, 3], [2, 1, 3, 4])
    assert per_response(compute_advantages(PARTS, inputs), inputs) == pytest.approx(oracle.batch_mean(rewards))
    for equal in (0.1, 0.7, 1 / 3):
        inputs = inputs_of([equal] * 7, list(range(7)))
        assert per_response(compute_advantages(PARTS, inputs), inputs) == [0.0] * 7


@pytest.mark.parametrize("size", [2, 3])
def test_the_expected_gradient_is_the_exact_one_less_the_share_of_the_own_reward(size: int) -> None:
    """A response's own reward is in the mean: over all batches of B, the update has 1 - 1/B of the gradient."""
    policy = Tiny.of(4)
    rewards = torch.tensor([0.3, 1.0, -0.5, 0.2, 0.9, 0.0, 0.6], dtype=torch.float64)
    scores, total = policy.scores().sum(1), torch.zeros(12, dtype=torch.float64)
    for batch in itertools.product(range(len(RESPONSES)), repeat=size):
        rows = list(batch)
        inputs = AdvantageInputs(rewards[rows], torch.arange(size), torch.ones(size, 1))
        advantages = compute_advantages(PARTS, inputs).advantages
        total += policy.chances().detach()[rows].prod() * (advantages * scores[rows]).mean(0)
    exact = policy.gradient((policy.chances() * rewards).sum())
    torch.testing.assert_close(total, (1 - 1 / size) * exact, rtol=1e-12, atol=1e-14)
