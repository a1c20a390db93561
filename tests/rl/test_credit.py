"""What of a reward each token answers for: clamps, and the KL in the reward."""

import dataclasses
import random

import pytest
import torch

from tests.oracles import advantages as advantages_oracle
from tests.oracles import rl as oracle
from tests.rl.rewarded import inputs_of, parts_of, per_response
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.rl.credit import compute_advantages


def with_kl(advantage, form, coef):
    return parts_of(advantage, kl_in="reward", kl_form=form, kl_coef=coef)


@pytest.mark.parametrize("form", ["k1", "k2", "k3"])
def test_kl_in_the_reward_is_taken_off_each_response(form):
    r = random.Random(4)
    lengths, rewards, groups = [3, 1, 4, 2], [1.0, 0.0, 0.5, 1.0], [0, 0, 1, 1]
    inputs = inputs_of(rewards, groups, lengths)
    old = torch.full_like(inputs.response_mask, float("nan"), dtype=torch.float64)
    ref = old.clone()
    expected = []
    for i, (size, reward) in enumerate(zip(lengths, rewards, strict=True)):
        total = 0.0
        for t in range(size):
            a, b = -r.random(), -r.random()
            old[i, 2 + t], ref[i, 2 + t] = a, b
            total += oracle.kl(form, a, b, a)
        expected.append(reward - 0.3 * total)
    inputs = dataclasses.replace(inputs, old_logprobs=old, ref_logprobs=ref)
    found = compute_advantages(with_kl({"name": "none", "kl_credit": "response"}, form, 0.3), inputs)
    assert per_response(found, inputs) == pytest.approx(expected, rel=1e-12)
    total_kl = sum(a - b for a, b in zip(rewards, expected, strict=True)) / 0.3
    assert found.stats["reward/kl_per_response"] == pytest.approx(total_kl / 4)
    assert found.stats["reward/kl_per_token"] == pytest.approx(total_kl / 10)


def test_a_cap_holds_for_kl_in_the_reward_and_is_counted():
    inputs = inputs_of([1.0, 0.0], [0, 1], [2, 1])
    old = torch.full_like(inputs.response_mask, -1.0, dtype=torch.float64)
    inputs = dataclasses.replace(inputs, old_logprobs=old, ref_logprobs=old + 4.0)
    capped = parts_of("none", kl_in="reward", kl_form="k3", kl_coef=0.1, kl_cap=10.0)
    found = compute_advantages(capped, inputs)
    assert float(found.advantages[0, 2]) == pytest.approx(1.0 - 0.1 * 20.0)
    assert found.stats["reward/kl_capped"] == 1.0
    assert "reward/kl_capped" not in compute_advantages(with_kl("none", "k3", 0.1), inputs).stats


@pytest.mark.parametrize("name", ["none", "greedy_baseline"])
def test_a_token_answers_for_the_kl_from_itself_to_the_end(name):
    lengths, rewards = [3, 1], [1.0, 0.5]
    inputs = inputs_of(rewards, [0, 1], lengths, greedy_rewards=torch.tensor([0.25, 0.25]))
    old = torch.full_like(inputs.response_mask, float("nan"), dtype=torch.float64)
    ref = old.clone()
    kls = [[2.0, 0.5, -1.0], [0.25]]
    for i, row in enumerate(kls):
        for t, value in enumerate(row):
            old[i, 2 + t], ref[i, 2 + t] = -1.0, -1.0 - value
    inputs = dataclasses.replace(inputs, old_logprobs=old, ref_logprobs=ref)
    parts = with_kl(name, "k1", 0.5)
    assert parts.token_advantage
    found = compute_advantages(parts, inputs).advantages[inputs.response_mask > 0]
    base = 0.25 if name == "greedy_baseline" else 0.0
    expected = [
        reward - base - 0.5 * sum(row[t:]) for reward, row in zip(rewards, kls, strict=True) for t in range(len(row))
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    assert not parts_of(name).token_advantage


def test_reward_to_go_carries_the_kl_and_is_whitened_over_tokens():
    r = random.Random(9)
    lengths, rewards = [3, 1, 4], [1.0, 0.0, 0.5]
    inputs = inputs_of(rewards, [0, 1, 2], lengths)
    old = torch.full_like(inputs.response_mask, float("inf"), dtype=torch.float64)
    ref = old.clone()
    flat = []
    for i, (size, reward) in enumerate(zip(lengths, rewards, strict=True)):
        tokens = []
        for t in range(size):
            a, b = -r.random(), -r.random()
            old[i, 2 + t], ref[i, 2 + t] = a, b
            tokens.append(-0.3 * (a - b) + (reward if t == size - 1 else 0.0))
        flat += advantages_oracle.reward_to_go(tokens, 0.9)
    inputs = dataclasses.replace(inputs, old_logprobs=old, ref_logprobs=ref)
    parts = with_kl({"name": "reward_to_go_norm", "gamma": 0.9, "ddof": 0, "eps": 1e-8}, "k1", 0.3)
    found = compute_advantages(parts, inputs).advantages
    assert found[inputs.response_mask > 0].tolist() == pytest.approx(oracle.whiten(flat, 0, 1e-8), rel=1e-9)


def test_rewards_and_the_greedy_baseline_are_clamped_alike():
    """A greedy reward beyond the clip would otherwise push the best answers down."""
    _, parts = load_algorithm("remax", {"kl_coef": 0, "reward_clip": 1.0})
    inputs = inputs_of([2.0, 0.5, -3.0], [0, 0, 1], greedy_rewards=torch.tensor([2.0, 2.0, -5.0]))
    assert per_response(compute_advantages(parts, inputs), inputs) == [0.0, -0.5, 0.0]
