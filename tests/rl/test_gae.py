"""GAE and the critic's loss against the definition."""

import random

import pytest
import torch

from tests.oracles import advantages as advantages_oracle
from tests.oracles import rl as oracle
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages
from verizero.pipeline.rl.gae import reward_to_go, summarize_values, value_loss

NAN = float("nan")


def scene(seed, num=5):
    """Inputs with gaps inside responses, where tokens lie, and the values there; NaN elsewhere."""
    r = random.Random(seed)
    width = 9
    where = [sorted(r.sample(range(width), r.randint(1, 6))) for _ in range(num)]
    values = [[r.gauss(0, 1) for _ in places] for places in where]
    mask, grid = torch.zeros(num, width), torch.full((num, width), NAN, dtype=torch.float64)
    for i, places in enumerate(where):
        mask[i, places] = 1
        grid[i, places] = torch.tensor(values[i], dtype=torch.float64)
    rewards = torch.tensor([r.gauss(0, 1) for _ in range(num)], dtype=torch.float64)
    return AdvantageInputs(rewards, torch.arange(num), mask, values=grid), where, values


def at(x, where):
    return [float(x[i, t]) for i, places in enumerate(where) for t in places]


def ppo(**params):
    return load_algorithm("ppo", {"kl_coef": 0, **params})[1]


@pytest.mark.parametrize(
    "params",
    [
        {"gamma": 0.9, "lam": 0.5},
        {"lam": 0.0},
        {"gamma": 0.7, "lam": 1.0},
        {"lam_critic": 1.0, "length_alpha": 0.5},
        {"whiten": True, "ddof": 1, "eps": 1e-8},
    ],
    ids=str,
)
def test_gae_equals_its_definition(params):
    """Also with a lambda of the critic's own, and one by length; whitening leaves the returns alone."""
    inputs, where, values = scene(1)
    found = compute_advantages(ppo(**{"whiten": False, **params}), inputs)
    gamma, advantages, returns = params.get("gamma", 1.0), [], []
    for vs, reward in zip(values, inputs.rewards.tolist(), strict=True):
        rs = [0.0] * (len(vs) - 1) + [reward]
        lam = max(0.0, 1 - 1 / (0.5 * len(vs))) if "length_alpha" in params else params.get("lam", 0.95)
        advantages += advantages_oracle.gae(rs, vs, 0.0, gamma, lam)[0]
        returns += advantages_oracle.gae(rs, vs, 0.0, gamma, params.get("lam_critic", lam))[1]
    if params.get("whiten"):
        advantages = oracle.whiten(advantages, 1, 1e-8)
    assert at(found.advantages, where) == pytest.approx(advantages, rel=1e-9)
    assert at(found.returns, where) == pytest.approx(returns, rel=1e-12)
    outside = inputs.response_mask == 0
    assert bool((found.advantages[outside] == 0).all())
    assert bool((found.returns[outside] == 0).all())


def test_reward_to_go_steps_over_gaps():
    mask = torch.tensor([[0, 1, 0, 0, 1, 1, 0]], dtype=torch.bool)
    rewards = torch.tensor([[9.0, 1.0, 9.0, 9.0, 2.0, 3.0, 9.0]], dtype=torch.float64)
    found = reward_to_go(rewards, mask, 0.5)
    expected = advantages_oracle.reward_to_go([1.0, 2.0, 3.0], 0.5)
    assert found[mask].tolist() == pytest.approx(expected)
    assert bool((found[~mask] == 0).all())


@pytest.mark.parametrize("clip", [None, 0.2])
def test_value_loss_and_its_gradient(clip):
    inputs, where, values = scene(6)
    r = random.Random(1)
    old = [[v + r.gauss(0, 0.4) for v in row] for row in values]
    target = [[r.gauss(0, 1) for _ in row] for row in values]

    def grid(rows):
        out = torch.full_like(inputs.values, NAN)
        for i, places in enumerate(where):
            out[i, places] = torch.tensor(rows[i], dtype=torch.float64)
        return out

    total = sum(map(len, where))
    given = grid(values).requires_grad_()
    loss, stats = value_loss(given, grid(old), grid(target), inputs.response_mask, total, clip)
    loss.backward()

    def slow(rows):
        parts = [advantages_oracle.value_loss(v, o, g, clip) for v, o, g in zip(rows, old, target, strict=True)]
        return sum(map(sum, parts)) / total

    assert float(loss.detach()) == pytest.approx(slow(values), rel=1e-12)
    for i, places in enumerate(where):
        for j, t in enumerate(places):
            sides = []
            for h in (1e-6, -1e-6):
                moved = [list(row) for row in values]
                moved[i][j] += h
                sides.append(slow(moved))
            assert float(given.grad[i, t]) == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-6, abs=1e-9)
    metrics = summarize_values(stats)
    flat_v, flat_g = [v for row in values for v in row], [g for row in target for g in row]
    residual = [g - v for g, v in zip(flat_g, flat_v, strict=True)]
    explained = 1 - oracle.std(residual, 0) ** 2 / oracle.std(flat_g, 0) ** 2
    assert metrics["critic/explained_variance"] == pytest.approx(explained, rel=1e-9)
    assert (metrics["critic/clip_fraction"] > 0) == (clip is not None)
