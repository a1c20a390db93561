"""The optimal token baseline: its arithmetic, its weights, and the rows that it compares."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from tests.oracles import advantages as oracle
from tests.rl.rewarded import parts_of
from verizero.pipeline.errors import DataError
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages
from verizero.pipeline.rl.logprobs import logprobs_and_entropy, score_norms

LENGTHS, GROUPS = [3, 1, 4, 2, 2, 2], [0, 0, 0, 1, 1, 1]


def scene(seed: int, coef: float) -> tuple[AdvantageInputs, list[list[float]], list[list[float]]]:
    """Inputs with gaps between tokens and NaN around them, the rewards to go and the norms token by token."""
    r = random.Random(seed)
    mask = torch.zeros(len(LENGTHS), 9)
    old, ref, norms = (torch.full(mask.shape, float("nan"), dtype=torch.float64) for _ in range(3))
    rewards = [r.random() for _ in LENGTHS]
    to_go, sizes = [], []
    for i, size in enumerate(LENGTHS):
        places = sorted(r.sample(range(9), size))
        kls = [r.gauss(0, 1) for _ in places]
        sizes.append([r.random() + 0.1 for _ in places])
        for t, place in enumerate(places):
            mask[i, place], old[i, place], ref[i, place] = 1.0, -1.0, -1.0 - kls[t]
            norms[i, place] = sizes[i][t]
        to_go.append([rewards[i] - coef * sum(kls[t:]) for t in range(size)])
    inputs = AdvantageInputs(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(GROUPS),
        mask,
        old_logprobs=old,
        ref_logprobs=ref,
        score_norms=norms,
    )
    return inputs, to_go, sizes


@pytest.mark.parametrize("seed", range(4))
def test_the_double_finds_the_same(seed: int) -> None:
    inputs, to_go, norms = scene(seed, 0.3)
    parts = parts_of("optimal_token_baseline", kl_in="reward", kl_form="k1", kl_coef=0.3)
    found = compute_advantages(parts, inputs).advantages
    assert bool((found[inputs.response_mask == 0] == 0).all())
    expected = oracle.optimal_token_baseline(to_go, norms, GROUPS)
    assert found[inputs.response_mask > 0].tolist() == pytest.approx([a for row in expected for a in row], rel=1e-10)


def test_equal_rewards_give_exactly_nothing_whatever_the_lengths() -> None:
    inputs, _, _ = scene(0, 0.0)
    inputs = dataclasses.replace(inputs, rewards=torch.full_like(inputs.rewards, 0.1))
    found = compute_advantages(parts_of("optimal_token_baseline"), inputs).advantages
    assert bool((found == 0).all())


def test_others_without_any_gradient_are_no_division_by_0() -> None:
    inputs, _, _ = scene(1, 0.0)
    norms = torch.where(inputs.response_mask > 0, 0.0, inputs.score_norms)
    norms[0] = torch.where(inputs.response_mask[0] > 0, 1.0, norms[0])
    found = compute_advantages(
        parts_of("optimal_token_baseline"), dataclasses.replace(inputs, score_norms=norms)
    ).advantages
    assert bool(torch.isfinite(found).all())
    mean = float(inputs.rewards[1:3].mean())
    first = int(inputs.response_mask[0].nonzero()[0])
    assert float(found[0, first]) == pytest.approx(float(inputs.rewards[0]) - mean, rel=1e-12)


def test_it_needs_score_norms() -> None:
    inputs, _, _ = scene(0, 0.0)
    with pytest.raises(DataError, match="score_norms"):
        compute_advantages(parts_of("optimal_token_baseline"), dataclasses.replace(inputs, score_norms=None))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_score_norms_are_the_squared_gradients_to_the_logits(temperature: float) -> None:
    logits = torch.randn(5, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.tensor([0, 3, 3, 10, 5])
    kept = torch.tensor([[0, 1, 2], [3, -1, -1], [-1, -1, -1], [10, 4, -1], [-1, -1, -1]])
    tempered = (logits / temperature).requires_grad_()
    logprobs, _ = logprobs_and_entropy(tempered, targets, 1.0, kept)
    (gradient,) = torch.autograd.grad(logprobs.sum(), tempered)
    now, _ = logprobs_and_entropy(logits, targets, temperature, kept)
    half, _ = logprobs_and_entropy(logits, targets, temperature / 2, kept)
    assert score_norms(now, half).tolist() == pytest.approx((gradient**2).sum(1).tolist(), rel=1e-10, abs=1e-15)
