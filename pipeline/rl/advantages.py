"""Advantage estimators: rewards in, [B] or [B, T] out, in float64.

Each takes `Rewarded` and its numbers, and returns advantages, or advantages and the critic's returns [B, T]. A callable
with the same signature can take the place of a name in `Parts.advantage`. A group whose rewards are all equal has
advantage exactly 0 in every group estimator: its spread is rounding, and nothing is divided by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import DataError
from verizero.pipeline.rl.gae import lambda_return, length_adaptive_lambda, reward_to_go
from verizero.pipeline.rl.reduce import divide, masked, moments
from verizero.pipeline.rl.reduce import whiten as whitened


@dataclass(frozen=True, slots=True)
class Rewarded:
    """Inputs of an estimator, in float64. Rewards are shaped, and contain the KL where it enters the reward."""

    rewards: Tensor
    """[B]: the sum of `token_rewards` over each response."""
    token_rewards: Tensor
    """[B, T]: the KL penalty at each token, and the reward at the last."""
    mask: Tensor
    """[B, T] bool."""
    groups: Tensor
    """[B] int64 in 0..num_groups-1."""
    values: Tensor | None = None
    """[B, T]: the critic's value of the state before each token."""
    greedy_rewards: Tensor | None = None
    """[B]: the reward of the greedy response to the row's prompt."""
    components: Tensor | None = None
    """[B, K]."""
    score_norms: Tensor | None = None
    """[B, T]: the squared length of the gradient of each token's log-prob to the logits; see `logprobs.score_norms`."""
    turns: Tensor | None = None
    """[B, T] int64: number of each token's turn, for credit by turn."""
    turn_rewards: Tensor | None = None
    """[B, K]: the environment's reward for each turn, NaN where it gave none."""

    @property
    def lengths(self) -> Tensor:
        """[B]: number of trained tokens of each response."""
        return self.mask.sum(dim=1).to(self.rewards.dtype)

    @property
    def rows(self) -> Tensor:
        """[B] bool: every response, as a mask for `whiten` and `moments`."""
        return torch.ones_like(self.rewards, dtype=torch.bool)


def gae(
    x: Rewarded,
    *,
    gamma: float,
    lam: float,
    lam_critic: float | None,
    length_alpha: float | None,
    whiten: bool,
    **spread: Any,
) -> tuple[Tensor, Tensor]:
    """Return GAE and the critic's returns, both [B, T]. `spread` is the `ddof` and `eps` of whitening.

    `lam_critic` gives the returns a lambda of their own, `length_alpha` a lambda per response. V past the last token is
    0. Returns are A + V before whitening.

    Raises: DataError without values.
    Source: arXiv:1506.02438 eq. 16; arXiv:2503.01491; arXiv:2504.05118.
    """
    if x.values is None:
        raise DataError("advantage 'gae' needs values, got None; run the critic over the batch")
    values = masked(x.values, x.mask)
    # Two lambdas: the policy's trades bias for variance, the critic's (usually 1) keeps its targets unbiased.
    policy_lam: float | Tensor = lam if length_alpha is None else length_adaptive_lambda(x.lengths, length_alpha)
    advantages = lambda_return(x.token_rewards, values, x.mask, gamma=gamma, lam=policy_lam)
    returns = advantages + values
    if lam_critic is not None:
        returns = values + lambda_return(x.token_rewards, values, x.mask, gamma=gamma, lam=lam_critic)
    # Only now: the returns stay in the reward's unit, in which the critic learns.
    if whiten:
        advantages = whitened(advantages, x.mask, **spread)
    return advantages, masked(returns, x.mask)


def group_norm(x: Rewarded, *, std: str, ddof: int, eps: float) -> Tensor:
    """Return (R_i - mean of the group) / (std + eps), [B]; `std` is taken over the group, the batch, or none.

    Source: arXiv:2402.03300 section 4.1.2.
    """
    centred = group_mean(x)
    if std == "none":
        return centred
    if std == "batch":
        # The spread of the batch is not 0 for a flat group: `_zero_if_flat` keeps that group's rounding out.
        _, _, spread = moments(x.rewards, x.rows, ddof)
        return _zero_if_flat(x.rewards, x.groups, centred / (spread + eps))
    return _zero_if_flat(x.rewards, x.groups, centred / (_group_std(x.rewards, x.groups, ddof) + eps))


def group_mean(x: Rewarded) -> Tensor:
    """Return R_i - mean of the group, [B]. Source: arXiv:2503.20783."""
    return _zero_if_flat(x.rewards, x.groups, x.rewards - _mean(x.rewards, x.groups))


def batch_mean(x: Rewarded) -> Tensor:
    """Return R_i - mean of the batch, [B]; 0 if all rewards are equal. Needs no groups.

    Source: FlashREINFORCE, https://github.com/yifanzhang-pro/FlashREINFORCE (September 2026).
    """
    _, mean, std = moments(x.rewards, x.rows, 0)
    # The mean of equal floats may differ from them by rounding.
    return torch.where(std <= 1e-12 * mean.abs(), torch.zeros_like(x.rewards), x.rewards - mean)


def leave_one_out(x: Rewarded) -> Tensor:
    """Return R_i - mean of the others of the group, [B]. Source: arXiv:2402.14740."""
    size = _sum(torch.ones_like(x.rewards), x.groups)
    # R_i - mean of the others = (R_i - mean of all) n / (n - 1)
    return group_mean(x) * divide(size, size - 1)  # 0 for a group of one, which has no others


def max_rl(x: Rewarded) -> Tensor:
    """Return (R_i - mean) / mean of the group, 0 where the mean is not positive, [B]. Source: arXiv:2602.02710."""
    # A negative mean would turn the sign of every advantage; clamped to 0, `divide` answers 0.
    return divide(group_mean(x), _mean(x.rewards, x.groups).clamp(min=0))


def greedy_baseline(x: Rewarded, *, kl_credit: str) -> Tensor:
    """Return R_i - R of the greedy response, with `kl_credit` as in `none`. Source: arXiv:2310.10505 algorithm 1."""
    if x.greedy_rewards is None:
        raise DataError(
            "advantage 'greedy_baseline' needs greedy_rewards, got None; sample one greedy response a prompt"
        )
    rewards = none(x, kl_credit=kl_credit)
    return rewards - (x.greedy_rewards if rewards.dim() == 1 else x.greedy_rewards.unsqueeze(1))


def best_of_k(x: Rewarded, *, k: int | None) -> Tensor:
    """Return what response i adds to the best of k, averaged over the subsets of k responses of its group, [B].

    In a subset that is best - best of the others for the best response, and 0 for the rest. `k` None, or above the
    size of the group: the whole group, where only its one best response has an advantage. sum_i A_i grad log pi(y_i) is
    an unbiased gradient of the expected best of k.

    Source: arXiv:2503.19595 for the whole group; for subsets arXiv:2505.15201, with the others' best as baseline.
    """
    advantages = torch.zeros_like(x.rewards)
    for group in range(int(x.groups.max()) + 1 if len(x.groups) else 0):
        rows = (x.groups == group).nonzero().squeeze(1)
        rewards, order = x.rewards[rows].sort()
        size = len(rows)
        picked = size if k is None else min(k, size)
        # Of the subsets in which i is the best, those whose second is the j-th smallest: k - 2 more of the j below it.
        chances = [math.comb(j, picked - 2) / math.comb(size, picked) for j in range(size)]
        # Differences of equal rewards are exactly 0, and so is what a tie adds.
        ahead = (rewards.unsqueeze(1) - rewards).clamp(min=0)
        advantages[rows[order]] = ahead @ torch.tensor(chances, dtype=rewards.dtype, device=rewards.device)
    return advantages


def reward_to_go_norm(x: Rewarded, *, gamma: float, ddof: int, eps: float) -> Tensor:
    """Return sum_(s >= t) gamma^(s - t) r_s, whitened over the batch's tokens, [B, T]. Source: arXiv:2501.03262."""
    return whitened(reward_to_go(x.token_rewards, x.mask, gamma), x.mask, ddof, eps)


def group_mean_batch_norm(x: Rewarded, *, ddof: int, eps: float) -> Tensor:
    """Return R_i - mean of the group, whitened over the tokens of the batch, [B, T].

    A response counts as often as it has tokens, so that the mean over all tokens is 0.

    Source: arXiv:2501.03262, and the authors' code.
    """
    return whitened(group_mean(x).unsqueeze(1).expand(x.mask.shape), x.mask, ddof, eps)


def optimal_baseline(x: Rewarded) -> Tensor:
    """Return R_i - sum_j |y_j| R_j / sum_j |y_j| over the group, [B]. Source: arXiv:2505.23585."""
    weighted = _sum(x.lengths * x.rewards, x.groups)
    return _zero_if_flat(x.rewards, x.groups, x.rewards - divide(weighted, _sum(x.lengths, x.groups)))


def optimal_token_baseline(x: Rewarded) -> Tensor:
    """Return G_t - B_t, [B, T]: B_t = sum_j W_jt G_jt / sum_j W_jt over the responses of the group that have a token t.

    G_t is the reward from token t on, W_t the sum of the score norms up to t: responses that have moved the gradient
    much so far count more. j are the others, which leaves the expected gradient as it is; verl sums over all. A token t
    that no other response reaches has the mean of the others' rewards as baseline (verl: 0). t counts trained tokens,
    so that those between them do not shift it.

    Raises: DataError without score norms.
    Source: verl's optimal token baseline, arXiv:2602.07078.
    """
    if x.score_norms is None:
        raise DataError(
            "advantage 'optimal_token_baseline' needs score_norms [B, T], got None; see logprobs.score_norms"
        )
    # A shift of all rewards of a group changes no advantage; by the least of them, equal ones give exactly 0.
    least = _extreme(x.rewards, x.groups, "amin")
    to_go = reward_to_go(x.token_rewards, x.mask, 1.0) - least.unsqueeze(1)
    weights = masked(x.score_norms.to(to_go.dtype), x.mask).cumsum(dim=1)
    # Of the N trained tokens: one number for the group and the number of the token in its response, to sum by.
    key_N = (x.groups.unsqueeze(1) * x.mask.shape[1] + x.mask.cumsum(dim=1) - 1)[x.mask]
    weighted_N, weights_N = (weights * to_go)[x.mask], weights[x.mask]
    total_N, total_weights_N = _sum(weighted_N, key_N) - weighted_N, _sum(weights_N, key_N) - weights_N
    # Less than this is the rounding of the difference.
    is_alone_N = (_sum(torch.ones_like(weights_N), key_N) == 1) | (total_weights_N <= 1e-12 * weights_N)
    others_mean_N = (x.rewards - leave_one_out(x) - least).unsqueeze(1).expand(x.mask.shape)[x.mask]
    out = torch.zeros_like(to_go)
    out[x.mask] = to_go[x.mask] - torch.where(is_alone_N, others_mean_N, divide(total_N, total_weights_N))
    return out


def none(x: Rewarded, *, kl_credit: str) -> Tensor:
    """Return R_i less the KL that enters the reward: of the tokens from t on, [B, T], or of the whole response, [B].

    The KL of the tokens before t cannot depend on the choice of token t, so with `to_go` it is left out there: the
    expected gradient is the same, as a rule with less noise. Without KL in the reward both are R_i.
    """
    return x.rewards if kl_credit == "response" else reward_to_go(x.token_rewards, x.mask, 1.0)


def normalize_then_sum(x: Rewarded, *, weights: tuple[float, ...] | None, ddof: int, eps: float) -> Tensor:
    """Return the components, each normalised within its group, weighted, summed and whitened over the responses, [B].

    `weights` None weighs all components 1.

    Raises: DataError without components, or with another number of weights.
    Source: arXiv:2601.05242.
    """
    if x.components is None:
        raise DataError("advantage 'normalize_then_sum' needs reward_components [B, K], got None")
    num = x.components.shape[1]
    weights = (1.0,) * num if weights is None else weights
    if len(weights) != num:
        raise DataError(f"advantage.weights has {len(weights)} numbers for {num} reward components; give one for each")
    total = torch.zeros_like(x.rewards)
    for weight, column in zip(weights, x.components.unbind(dim=1), strict=True):
        # Each component is brought to its own unit first, so that one of large numbers does not hide the rest.
        centred = column - _mean(column, x.groups)
        total = total + weight * _zero_if_flat(column, x.groups, centred / (_group_std(column, x.groups, ddof) + eps))
    return whitened(total, x.rows, ddof, eps)


def flat_groups(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return [B] bool: True where all rewards of the row's group are equal."""
    # Largest equals smallest: exact, while a standard deviation of equal floats need not be 0.
    return _extreme(rewards, groups, "amax") == _extreme(rewards, groups, "amin")


def centred(values: Tensor, keys: Tensor) -> Tensor:
    """Return [N]: each value less the mean of those with the same key (int64 >= 0); 0 for a value alone."""
    return _zero_if_flat(values, keys, values - _mean(values, keys))


def normalised(values: Tensor, keys: Tensor, eps: float) -> Tensor:
    """Return [N]: `centred`, divided by the standard deviation of those with the same key (ddof 1) + eps."""
    return _zero_if_flat(values, keys, (values - _mean(values, keys)) / (_group_std(values, keys, 1) + eps))


def _zero_if_flat(rewards: Tensor, groups: Tensor, x: Tensor) -> Tensor:
    # The mean of equal floats may differ from them by rounding, which a spread of rounding would blow up to 1.
    return torch.where(flat_groups(rewards, groups), torch.zeros_like(x), x)


def _extreme(x: Tensor, groups: Tensor, which: str) -> Tensor:
    """Return the largest ("amax") or smallest ("amin") x of each row's group, [B]."""
    size = int(groups.max()) + 1 if len(groups) else 0
    start = torch.full((size,), float("-inf" if which == "amax" else "inf"), dtype=x.dtype, device=x.device)
    return start.scatter_reduce(0, groups, x, which)[groups]


def _sum(x: Tensor, groups: Tensor) -> Tensor:
    size = int(groups.max()) + 1 if len(groups) else 0
    # Sums by group [G], spread back over the rows by the last index: [B].
    return torch.zeros(size, dtype=x.dtype, device=x.device).index_add(0, groups, x)[groups]


def _mean(x: Tensor, groups: Tensor) -> Tensor:
    return _sum(x, groups) / _sum(torch.ones_like(x), groups)


def _group_std(x: Tensor, groups: Tensor, ddof: int) -> Tensor:
    squares = _sum((x - _mean(x, groups)) ** 2, groups)
    return divide(squares, _sum(torch.ones_like(x), groups) - ddof).sqrt()
