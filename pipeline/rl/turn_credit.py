"""Credit by turn: the advantage of a token from what its turn, and those after it, were worth.

Rows are episodes here, [B, T] their trained tokens in the order drawn, [B, K] their turns. A turn's return holds only
what came after its first token, so that the turns before it add no noise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import DataError
from verizero.pipeline.rl.advantages import Rewarded, centred, gae, normalised
from verizero.pipeline.rl.gae import reward_to_go
from verizero.pipeline.rl.reduce import masked
from verizero.pipeline.rl.reduce import whiten as whitened

STD_EPS = 1e-6
"""Added to the deviation of turns' returns, as in the code of arXiv:2505.10978."""


def none(x: Rewarded, advantages: Tensor) -> Tensor:
    """Return the advantages of the outcome as they are."""
    return advantages


def turns(x: Rewarded, advantages: Tensor, *, coef: float, outcome: float, gamma: float, std: str) -> Tensor:
    """Return outcome A + coef (G_k - mean of the G_k of the group's episodes that have a turn k), [B, T].

    G_k = sum_(j >= k) gamma^(j - k) r_j over the environment's rewards for turns, 0 where it gave none. An episode that
    ended before turn k is not in its mean. Turn 0 of all members begins in the same state, later ones need not: there
    the mean is a baseline of the turn's number alone. `std` "group" divides by the deviation of the same G_k, as the
    paper does; the default does not, as the spread of a turn says nothing of its importance.

    Raises: DataError without turns or their rewards.
    Source: arXiv:2505.11821.
    """
    exists = turns_of(x)
    to_go = reward_to_go(_rewards(x, exists), exists, gamma)
    num = exists.shape[1]
    keys = (x.groups.unsqueeze(1) * num + torch.arange(num, device=exists.device))[exists]
    part = torch.zeros_like(to_go)
    part[exists] = _part(to_go[exists], keys, std)
    return outcome * advantages + coef * _of_tokens(x, part)


def process(x: Rewarded, advantages: Tensor, *, coef: float, outcome: float) -> Tensor:
    """Return outcome A + coef sum_(j >= k) (r_j - mean) / (std + eps), [B, T]: k is the token's turn.

    Mean and std (ddof 1) are of all rewards of turns of the group. The turns are the steps of a response, or those of
    an episode; one without a reward is no step. A response without any is one step, with its own reward, as in outcome
    supervision. A step without a token of its own ends with the same token as the step before it.

    Raises: DataError without turns or their rewards.
    Source: arXiv:2402.03300 section 4.1.3.
    """
    turns_of(x)
    rewards = _given(x)
    is_step = rewards.isfinite()
    whole = ~is_step.any(dim=1)
    # At the last turn of any response, so that no token comes after it.
    rewards[whole, -1], is_step[whole, -1] = x.rewards[whole], True
    part = torch.zeros_like(rewards)
    keys = x.groups.unsqueeze(1).expand(rewards.shape)[is_step]
    part[is_step] = normalised(rewards[is_step], keys, STD_EPS)
    return outcome * advantages + coef * _of_tokens(x, part.flip(1).cumsum(1).flip(1))


def turn_gae(x: Rewarded, *, coef: float, whiten: bool, ddof: int, eps: float, **options: Any) -> tuple[Tensor, Tensor]:
    """Return GAE and the critic's returns with turns as time steps, both [B, T]: equal for all tokens of a turn.

    V_k is the critic's value before the first token of turn k, where the policy has read everything and said nothing;
    r_k is the sum of its tokens' rewards, with the episode's at the last one, + coef times the environment's reward for
    the turn. `options` are those of `advantages.gae`; gamma and lambda count turns. Whitened over tokens, as GAE is.

    Raises: DataError without turns or values.
    Source: arXiv:1506.02438 eq. 16.
    """
    if x.values is None:
        raise DataError("credit 'turn_gae' needs values, got None; run the critic over the batch")
    exists = turns_of(x)
    rewards_B_K = _of_turns(x, exists, x.token_rewards)
    if x.turn_rewards is not None:
        rewards_B_K = rewards_B_K + coef * _rewards(x, exists)
    by_turn = replace(x, token_rewards=rewards_B_K, mask=exists, values=_first(x, exists, x.values))
    advantages, returns = gae(by_turn, whiten=False, ddof=ddof, eps=eps, **options)
    advantages, returns = _of_tokens(x, advantages), _of_tokens(x, returns)
    if whiten:
        advantages = whitened(advantages, x.mask, ddof, eps)
    return advantages, returns


def turns_of(x: Rewarded) -> Tensor:
    """Return [B, K] bool: the turns of each episode. Raises: DataError without the number of each token's turn."""
    if x.turns is None:
        raise DataError("credit by turn needs turn_ids [B, T], got None; pass the batch's")
    num = int(masked(x.turns, x.mask).max()) + 1 if x.mask.any() else 1
    if x.turn_rewards is not None:
        num = max(num, x.turn_rewards.shape[1])
    exists = torch.zeros(len(x.turns), num, dtype=torch.bool, device=x.turns.device)
    exists[x.mask.nonzero(as_tuple=True)[0], x.turns[x.mask]] = True
    return exists


def _part(to_go: Tensor, keys: Tensor, std: str) -> Tensor:
    return centred(to_go, keys) if std == "none" else normalised(to_go, keys, STD_EPS)


def _rewards(x: Rewarded, exists: Tensor) -> Tensor:
    """Return [B, K]: the environment's rewards for turns, 0 where it gave none."""
    rewards = _given(x)
    return masked(rewards, exists & rewards.isfinite())


def _given(x: Rewarded) -> Tensor:
    """Return [B, K]: a copy of the rewards for turns, NaN where there is none."""
    if x.turn_rewards is None:
        raise DataError("credit by turn needs turn_rewards [B, K], got None; pass the episodes' own")
    return x.turn_rewards.clone()


def _of_turns(x: Rewarded, exists: Tensor, by_token: Tensor) -> Tensor:
    """Return [B, K]: the sum of [B, T] values over the tokens of each turn."""
    assert x.turns is not None
    zeros = torch.zeros(exists.shape, dtype=by_token.dtype, device=by_token.device)
    return zeros.scatter_add(1, masked(x.turns, x.mask), masked(by_token, x.mask))


def _of_tokens(x: Rewarded, by_turn: Tensor) -> Tensor:
    """Return [B, T]: the value of each token's turn, 0 outside the mask."""
    assert x.turns is not None
    return masked(by_turn.gather(1, masked(x.turns, x.mask)), x.mask)


def _first(x: Rewarded, exists: Tensor, by_token: Tensor) -> Tensor:
    """Return [B, K]: the value of the first token of each turn, 0 for turns that an episode has not."""
    assert x.turns is not None
    num = x.mask.shape[1]
    columns = torch.arange(num, device=exists.device).expand(x.mask.shape)
    # A column outside the mask counts as past the end, so that no turn begins there.
    columns = torch.where(x.mask, columns, torch.full_like(columns, num))
    ends = torch.full(exists.shape, num, dtype=torch.int64, device=exists.device)
    first = ends.scatter_reduce(1, masked(x.turns, x.mask), columns, "amin")
    return masked(masked(by_token, x.mask).gather(1, first.clamp(max=num - 1)), exists)
