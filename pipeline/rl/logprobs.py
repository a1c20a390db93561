"""Log-probabilities and entropies of tokens from logits, in float32, without a float32 copy of the logits.

A vocabulary of 150,000 at 8,192 tokens is 2.4 GB in bfloat16, and a float32 softmax saved for backward would add
4.9 GB. Here forward and backward both go over a few hundred rows at a time, and only the log-normaliser is saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.errors import ConfigError, DataError

CHUNK_ELEMENTS = 1 << 25
"""At most this many float32 logits at once: 128 MiB."""
NEVER = -1e4
"""Finite log-prob in place of -inf: its exp is exactly 0 in float64 too, and 0 times it is 0, where 0 * inf is NaN."""


def logprobs_and_entropy(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, kept: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return log softmax(logits / temperature)[targets] and the entropy in nats, each [...] in float32 or wider.

    logits [..., V], targets [...]. The gradient flows through both, in the type of the logits. Logits of -inf are
    tokens that cannot be drawn: probability 0, no share in the entropy, no gradient. So are tokens outside `kept`
    [N, K]: for each of the N targets in order the token ids that top-p or top-k left while sampling, padded with -1; a
    row of only -1 was sampled without a cut. The log-probs are then those of the distribution that was sampled from.

    Raises: ConfigError unless temperature > 0; DataError if a target is not in its own kept set.
    Source: arXiv:2512.02556 section 3.1, "keep sampling mask".
    """
    shape, vocab = targets.shape, logits.shape[-1]
    check_scoring(targets.reshape(-1), temperature, kept)
    out = ChunkedScores.apply(  # type: ignore[no-untyped-call]
        logits.reshape(-1, vocab), None, None, targets.reshape(-1), float(temperature), kept,
        max(1, CHUNK_ELEMENTS // max(1, vocab)),
    )  # fmt: skip
    return out[0].reshape(shape), out[1].reshape(shape)


def check_scoring(targets: Tensor, temperature: float, kept: Tensor | None) -> None:
    """Raise ConfigError unless temperature > 0, and DataError if a target [N] is not in its own kept set [N, K]."""
    if not temperature > 0:
        raise ConfigError(f"temperature must be > 0 to have log-probs, got {temperature}")
    if kept is None:
        return
    real = kept >= 0
    # [N]: the target is in its set, or no set was recorded (only padding).
    inside = ((kept == targets.unsqueeze(1)) & real).any(dim=1) | ~real.any(dim=1)
    if not bool(inside.all()):
        row = int((~inside).nonzero()[0, 0])
        raise DataError(
            f"token {int(targets[row])} at row {row} is not in the set recorded for it; record the kept set"
        )


def _cut_off(shape: torch.Size, kept: Tensor, targets: Tensor) -> Tensor:
    """Return [N, V] bool: True for tokens outside the recorded set."""
    real = kept >= 0
    outside = real.any(dim=1).unsqueeze(1).expand(shape).contiguous()  # a row of only padding stays whole
    # Padding points at the target, which is in the set anyway.
    return outside.scatter_(1, torch.where(real, kept, targets.unsqueeze(1)), False)


def score_norms(logprobs: Tensor, at_half: Tensor) -> Tensor:
    """Return the squared length of the gradient of each token's log-prob to its logits, 1 - 2 pi + sum_v pi(v)^2.

    `at_half` are the log-probs of the same tokens at half the temperature, which square every probability: from both,
    sum_v pi(v)^2 = pi^2 / pi_half, so that no forward has to sum over the vocabulary for it. Logits over the
    temperature are meant by logits.

    Source: arXiv:2602.07078, the logit-gradient proxy.
    """
    return (1 - 2 * logprobs.exp() + (2 * logprobs - at_half).exp()).clamp(min=0)  # rounding may go below 0


def working(x: Tensor) -> Tensor:
    """Return x in the type of all log-ratios: float32, or float64 where x has it."""
    return x if x.dtype == torch.float64 else x.float()


def score_rows(
    logits: Tensor, targets: Tensor, temperature: float, kept: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (log-probs of the targets, log-normalisers, entropies), each [N], and overwrite the logits [N, V]."""
    # All in the memory of the logits: the caller gives a copy.
    log_p = _tempered(logits, targets, temperature, kept)
    normaliser = torch.logsumexp(log_p, dim=-1)
    log_p -= normaliser.unsqueeze(1)
    picked = log_p.gather(1, targets.unsqueeze(1)).squeeze(1)
    # After `picked`, which stays exact. The entropy has p log p, where 0 * -inf would be NaN.
    log_p.clamp_(min=NEVER)
    return picked, normaliser, -torch.linalg.vecdot(log_p.exp(), log_p)


def pull_rows(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    kept: Tensor | None,
    scored: tuple[Tensor, Tensor],
    pull: Tensor,
    spread: Tensor | None,
) -> Tensor:
    """Return the gradient of sum(pull * log-probs + spread * entropies) to the logits [N, V], and overwrite these.

    `scored` is the log-normalisers and entropies that `score_rows` returned.
    """
    normaliser, entropy = scored
    # The chain rule through logits / temperature, applied to [N] instead of [N, V].
    pull, spread = pull / temperature, None if spread is None else spread / temperature
    log_p = _tempered(logits, targets, temperature, kept)
    log_p -= normaliser.unsqueeze(1)
    p = log_p.exp()
    # d logp_y / d z_j = [j = y] - p_j;   d H / d z_j = -p_j (log p_j + H)
    if spread is None:
        # -pull p_j here; the scatter below adds pull at the target.
        p *= -pull.unsqueeze(1)
    else:
        # p_j (-spread (log p_j + H) - pull): both gradients in one pass over the rows.
        log_p.clamp_(min=NEVER).mul_(-spread.unsqueeze(1))
        log_p -= (pull + spread * entropy).unsqueeze(1)
        p *= log_p
    return p.scatter_add_(1, targets.unsqueeze(1), pull.unsqueeze(1))


def _tempered(logits: Tensor, targets: Tensor, temperature: float, kept: Tensor | None) -> Tensor:
    if kept is not None:
        logits.masked_fill_(_cut_off(logits.shape, kept, targets), float("-inf"))
    if temperature != 1.0:
        logits /= temperature
    return logits


class ChunkedScores(torch.autograd.Function):
    """Log-probs of targets and entropies, each [N], of states, by some rows of logits at a time.

    The logits of states [N, H] are those of an output layer: `weight` [V, H], `bias`. Without a weight the states are
    the logits, [N, V]. The backward makes the logits and their softmax again: only [N] numbers are saved.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        kept: Tensor | None,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if states.dtype == torch.float64 else torch.float32
        picked = torch.empty(len(states), dtype=dtype, device=states.device)
        normaliser, entropy = torch.empty_like(picked), torch.empty_like(picked)
        for rows in _chunks(len(states), chunk_tokens):
            logits = _logits_of(states[rows], weight, bias, dtype)
            cut = None if kept is None else kept[rows]
            picked[rows], normaliser[rows], entropy[rows] = score_rows(logits, targets[rows], temperature, cut)
        ctx.save_for_backward(states, weight, bias, targets, normaliser, entropy, kept)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.set_materialize_grads(False)  # an output without a gradient gives None, not zeros
        return picked, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, pull: Tensor | None, spread: Tensor | None = None) -> tuple[Tensor | None, ...]:
        if pull is None and spread is None:
            return (None,) * 7
        states, weight, bias, targets, normaliser, entropy, kept = ctx.saved_tensors
        pull = torch.zeros_like(normaliser) if pull is None else pull
        to_states = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        to_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for rows in _chunks(len(states), ctx.chunk_tokens):
            pulled = pull_rows(
                _logits_of(states[rows], weight, bias, normaliser.dtype),
                targets[rows],
                ctx.temperature,
                None if kept is None else kept[rows],
                (normaliser[rows], entropy[rows]),
                pull[rows],
                None if spread is None else spread[rows],
            ).to((states if weight is None else weight).dtype)
            if to_states is not None:
                to_states[rows] = pulled if weight is None else pulled @ weight
            if to_weight is not None:
                to_weight.addmm_(pulled.t(), states[rows])
            if to_bias is not None:
                to_bias += pulled.sum(0)
        return to_states, to_weight, to_bias, None, None, None, None


def _logits_of(states: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return logits that `score_rows` and `pull_rows` may overwrite."""
    return states.to(dtype, copy=True) if weight is None else F.linear(states, weight, bias).to(dtype)


def _chunks(num: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, num, size)]
