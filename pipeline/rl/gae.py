"""Generalised advantage estimation and the critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from verizero.pipeline.rl.logprobs import working
from verizero.pipeline.rl.reduce import divide, masked, masked_sum


def lambda_return(token_rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float | Tensor) -> Tensor:
    """Return A_t = delta_t + gamma lam A_(t+1), delta_t = r_t + gamma V_(t+1) - V_t, [B, T]; 0 outside the mask.

    Tokens outside the mask (prompt, tool output, padding) are skipped: the next value and the carried advantage are
    those of the next token that trains. V past the last token is 0. `lam` is a number or [B].

    Source: arXiv:1506.02438 eq. 16.
    """
    # A and V [B] of the next token that trains; past the last one both are 0.
    next_advantage = next_value = torch.zeros_like(values[:, 0])
    advantages = torch.zeros_like(token_rewards)
    for t in range(token_rewards.shape[1] - 1, -1, -1):
        trains = mask[:, t]
        delta = token_rewards[:, t] + gamma * next_value - values[:, t]
        # Rows whose token t does not train keep both, and so go from one trained token to the next.
        next_advantage = torch.where(trains, delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(trains, values[:, t], next_value)
        advantages[:, t] = masked(next_advantage, trains)
    return advantages


def length_adaptive_lambda(lengths: Tensor, alpha: float) -> Tensor:
    """Return 1 - 1 / (alpha length), at least 0, [B]: longer responses look further. Source: arXiv:2504.05118."""
    return (1 - 1 / (alpha * lengths.clamp(min=1))).clamp(min=0.0)  # a row of no tokens has no lambda


def reward_to_go(token_rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """Return sum_(s >= t) gamma^(s - t) r_s over the tokens of the mask, [B, T]; tokens between them are skipped."""
    # With values of 0, delta is the reward, and with lambda 1 only gamma discounts it.
    return lambda_return(token_rewards, torch.zeros_like(token_rewards), mask, gamma=gamma, lam=1.0)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, response_mask: Tensor, total_tokens: float, clip: float | None
) -> tuple[Tensor, Tensor]:
    """Return this micro-batch's share of the mean over tokens of 0.5 max((V - ret)^2, (V_clipped - ret)^2), and stats.

    V_clipped = clip(V, V_old - clip, V_old + clip); without `clip` only the first square counts. `total_tokens` is
    counted over the same mask, which contains truncated responses too: the critic learns from them even under the
    overlong filter. `stats` is a float64 vector [tokens, sum ret, sum ret^2, sum (ret - V), sum (ret - V)^2, clipped
    tokens] that adds over micro-batches and ranks; `summarize_values` reads it.

    Source: arXiv:1707.06347 section 5; the clipped form is that of the authors' code.
    """
    mask = response_mask > 0
    values, old_values, returns = (masked(working(x), mask) for x in (values, old_values, returns))
    squares = (values - returns) ** 2
    is_clipped = torch.zeros_like(mask)
    if clip is not None:
        # The larger square counts: a clip may slow the critic, but never makes its error look smaller.
        clipped_values = torch.maximum(torch.minimum(values, old_values + clip), old_values - clip)
        clipped_squares = (clipped_values - returns) ** 2
        is_clipped = clipped_squares > squares
        squares = torch.maximum(squares, clipped_squares)
    loss = divide(0.5 * masked_sum(squares, mask), total_tokens)
    # float64, because `summarize_values` subtracts squares of means from means of squares.
    error = (returns - values).detach().double()
    ret = returns.double()
    sums = (ret, ret**2, error, error**2, is_clipped.double())
    return loss, torch.stack([mask.sum().double(), *(masked_sum(x, mask) for x in sums)])


def summarize_values(stats: Tensor) -> dict[str, float]:
    """Return the critic's explained variance 1 - Var(ret - V) / Var(ret), RMS error and clipped share.

    Explained variance is 0 where the returns have no spread.
    """
    count, ret, ret_sq, err, err_sq, clipped = (float(v) for v in stats)
    count = max(count, 1.0)
    spread = ret_sq / count - (ret / count) ** 2
    residual = err_sq / count - (err / count) ** 2
    explained = 1 - residual / spread if spread > 1e-12 else 0.0
    return {
        "critic/explained_variance": explained,
        "critic/error_rms": (err_sq / count) ** 0.5,
        "critic/clip_fraction": clipped / count,
    }
