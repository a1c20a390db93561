"""Slow doubles of pipeline/rl/advantages.py: floats, lists and loops over groups, straight from the formulas."""

import itertools
from collections.abc import Sequence

from tests.oracles.rl import clamp, mean, std, whiten


def members(groups: Sequence[int], i: int) -> list[int]:
    return [j for j, g in enumerate(groups) if g == groups[i]]


def group_norm(rewards: Sequence[float], groups: Sequence[int], spread: str, ddof: int, eps: float) -> list[float]:
    out = []
    for i, reward in enumerate(rewards):
        own = [rewards[j] for j in members(groups, i)]
        centred = reward - mean(own)
        if max(own) == min(own):
            out.append(0.0)
        elif spread == "none":
            out.append(centred)
        else:
            out.append(centred / (std(own if spread == "group" else list(rewards), ddof) + eps))
    return out


def max_rl(rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
    out = []
    for i, reward in enumerate(rewards):
        centre = mean([rewards[j] for j in members(groups, i)])
        out.append((reward - centre) / centre if centre > 0 else 0.0)
    return out


def best_of_k(rewards: Sequence[float], groups: Sequence[int], k: int | None) -> list[float]:
    """By writing down every subset."""
    out = []
    for i in range(len(rewards)):
        own = members(groups, i)
        subsets = list(itertools.combinations(own, len(own) if k is None else min(k, len(own))))
        gains = [max(rewards[j] for j in s) - max(rewards[j] for j in s if j != i) if i in s else 0.0 for s in subsets]
        out.append(mean(gains))
    return out


def batch_mean(rewards: Sequence[float]) -> list[float]:
    return [reward - mean(rewards) for reward in rewards]


def optimal_baseline(rewards: Sequence[float], groups: Sequence[int], lengths: Sequence[int]) -> list[float]:
    out = []
    for i, reward in enumerate(rewards):
        own = members(groups, i)
        out.append(reward - sum(lengths[j] * rewards[j] for j in own) / sum(lengths[j] for j in own))
    return out


def optimal_token_baseline(
    to_go: Sequence[Sequence[float]], norms: Sequence[Sequence[float]], groups: Sequence[int]
) -> list[list[float]]:
    """By token of each response; `to_go` starts with the whole reward, which a tail has as baseline from the others."""
    out = []
    for i, own in enumerate(to_go):
        row = []
        for t, value in enumerate(own):
            reach = [j for j in members(groups, i) if len(to_go[j]) > t]
            if reach == [i]:
                row.append(value - mean([to_go[j][0] for j in members(groups, i) if j != i]))
                continue
            weights = {j: sum(norms[j][: t + 1]) for j in reach if j != i}
            row.append(value - sum(w * to_go[j][t] for j, w in weights.items()) / sum(weights.values()))
        out.append(row)
    return out


def normalize_then_sum(
    components: Sequence[Sequence[float]], groups: Sequence[int], weights: Sequence[float], ddof: int, eps: float
) -> list[float]:
    total = [0.0] * len(components)
    for k, weight in enumerate(weights):
        column = [row[k] for row in components]
        for i, value in enumerate(group_norm(column, groups, "group", ddof, eps)):
            total[i] += weight * value
    return whiten(total, ddof, eps)


def gae(
    rewards: Sequence[float], values: Sequence[float], final: float, gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """By the definition: A_t = sum_k (gamma lam)^k delta_(t+k)."""
    after = [*values[1:], final]
    deltas = [r + gamma * nxt - v for r, nxt, v in zip(rewards, after, values, strict=True)]
    advantages = [sum((gamma * lam) ** (s - t) * deltas[s] for s in range(t, len(deltas))) for t in range(len(deltas))]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def reward_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    return [sum(gamma ** (s - t) * rewards[s] for s in range(t, len(rewards))) for t in range(len(rewards))]


def value_loss(
    values: Sequence[float], old: Sequence[float], returns: Sequence[float], clip: float | None
) -> list[float]:
    out = []
    for v, before, target in zip(values, old, returns, strict=True):
        worst = (v - target) ** 2
        if clip is not None:
            worst = max(worst, (clamp(v, before - clip, before + clip) - target) ** 2)
        out.append(0.5 * worst)
    return out


def process(
    steps: Sequence[Sequence[tuple[int, float]]], lengths: Sequence[int], groups: Sequence[int], eps: float
) -> list[list[float]]:
    """arXiv:2402.03300 section 4.1.3, by token: the sum of the normalised rewards of steps that end there or later.

    A step is (index of its last token, reward).
    """
    out = []
    for i, length in enumerate(lengths):
        rewards = [r for j in members(groups, i) for _, r in steps[j]]
        centre, spread = mean(rewards), std(rewards, 1)
        own = [(end, 0.0 if spread == 0 else (r - centre) / (spread + eps)) for end, r in steps[i]]
        out.append([sum(r for end, r in own if end >= t) for t in range(length)])
    return out
