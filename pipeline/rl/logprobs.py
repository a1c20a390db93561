"""Log-probabilities and entropies of tokens from logits, in float32, without a float32 copy of the logits.

A vocabulary of 150,000 at 8,192 tokens is 2.4 GB in bfloat16, and a float32 softmax saved for backward would add
4.9 GB. Here forward and backward both go over a few hundred rows at a time, and only the log-normaliser is saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipeline.errors import ConfigError, DataError

CHUNK_ELEMENTS = 1 << 25
"""At most this many float32 logits at once: 128 MiB."""
_NEVER = -1e4
"""Stands for a log-prob of -inf: its exp is exactly 0 in float64 too, and 0 times it is 0, where 0 * inf is NaN."""


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float = 1.0, kept: Tensor | None = None) -> Tensor:
    """log softmax(logits / temperature)[targets]: logits [..., V], targets [...], result [...] in float32.

    float64 logits give float64. The gradient reaches the logits, in their own type. Memory beyond the logits and their
    gradient is bounded by CHUNK_ELEMENTS. `kept`: as for `logprobs_and_entropy`.

    Raises: ConfigError unless temperature > 0; DataError if a target is not in its own kept set.
    """
    return logprobs_and_entropy(logits, targets, temperature, kept)[0]


def logprobs_and_entropy(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, kept: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(log-probs of the targets, entropy in nats), each [...]; the gradient flows through both.

    Logits of -inf are tokens that cannot be drawn: probability 0, no share in the entropy, no gradient. So are the
    tokens outside `kept` [N, K] where it is given (N targets in order; see `keep_sampled`).

    Raises: ConfigError unless temperature > 0; DataError if a target is not in its own kept set.
    """
    shape, vocab = targets.shape, logits.shape[-1]
    check_scoring(targets.reshape(-1), temperature, kept)
    out = _Chunked.apply(  # type: ignore[no-untyped-call]
        logits.reshape(-1, vocab), targets.reshape(-1), float(temperature), kept
    )
    return out[0].reshape(shape), out[1].reshape(shape)


def keep_sampled(logits: Tensor, kept: Tensor, targets: Tensor) -> Tensor:
    """The logits with -inf outside the recorded set: what top-p or top-k cut off while sampling is cut off here too.

    logits [N, V]; kept [N, K] token ids, padded with -1; a row of only -1 was sampled without a cut and stays whole.
    Without this the trainer's log-probs are those of another distribution than the one sampled from.

    Raises: DataError if a target is not in its own recorded set.
    Source: arXiv:2512.02556 section 3.1, "keep sampling mask".
    """
    _check_kept(kept, targets)
    return logits.masked_fill(_cut_off(logits.shape, kept, targets), float("-inf"))


def check_scoring(targets: Tensor, temperature: float, kept: Tensor | None) -> None:
    """Raises: ConfigError unless temperature > 0; DataError if a target [N] is not in its own kept set [N, K]."""
    if not temperature > 0:
        raise ConfigError(f"temperature must be > 0 to have log-probs, got {temperature}")
    if kept is not None:
        _check_kept(kept, targets)


def _check_kept(kept: Tensor, targets: Tensor) -> None:
    real = kept >= 0
    found = ((kept == targets.unsqueeze(1)) & real).any(dim=1) | ~real.any(dim=1)
    if not bool(found.all()):
        row = int((~found).nonzero()[0, 0])
        raise DataError(
            f"token {int(targets[row])} at row {row} is not in the set recorded for it; record the kept set"
        )


def _cut_off(shape: torch.Size, kept: Tensor, targets: Tensor) -> Tensor:
    """bool [N, V]: tokens outside the recorded set."""
    real = kept >= 0
    outside = real.any(dim=1).unsqueeze(1).expand(shape).contiguous()  # a row of only padding stays whole
    # Padding points at the target, which is in the set anyway.
    return outside.scatter_(1, torch.where(real, kept, targets.unsqueeze(1)), False)


def working(x: Tensor) -> Tensor:
    """x in float32, or in float64 if it is that already: the type of all log-ratios."""
    return x if x.dtype == torch.float64 else x.float()


def score_rows(
    logits: Tensor, targets: Tensor, temperature: float, kept: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(log-probs of the targets, log-normalisers, entropies), each [N], of logits [N, V], which are overwritten."""
    log_p = _tempered(logits, targets, temperature, kept)
    normaliser = torch.logsumexp(log_p, dim=-1)
    log_p -= normaliser.unsqueeze(1)
    picked = log_p.gather(1, targets.unsqueeze(1)).squeeze(1)
    log_p.clamp_(min=_NEVER)
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
    """Gradient [N, V] of sum(pull * log-probs + spread * entropies) to the logits [N, V], which are overwritten.

    `scored`: log-normalisers and entropies, as `score_rows` found them.
    """
    normaliser, entropy = scored
    pull, spread = pull / temperature, None if spread is None else spread / temperature
    log_p = _tempered(logits, targets, temperature, kept)
    log_p -= normaliser.unsqueeze(1)
    p = log_p.exp()
    # d logp_y / d z_j = [j = y] - p_j;   d H / d z_j = -p_j (log p_j + H)
    if spread is None:
        p *= -pull.unsqueeze(1)
    else:
        log_p.clamp_(min=_NEVER).mul_(-spread.unsqueeze(1))
        log_p -= (pull + spread * entropy).unsqueeze(1)
        p *= log_p
    return p.scatter_add_(1, targets.unsqueeze(1), pull.unsqueeze(1))


def _tempered(logits: Tensor, targets: Tensor, temperature: float, kept: Tensor | None) -> Tensor:
    if kept is not None:
        logits.masked_fill_(_cut_off(logits.shape, kept, targets), float("-inf"))
    if temperature != 1.0:
        logits /= temperature
    return logits


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, kept: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        picked = torch.empty(logits.shape[0], dtype=dtype, device=logits.device)
        normaliser, entropy = torch.empty_like(picked), torch.empty_like(picked)
        for rows in _chunks(logits):
            cut = None if kept is None else kept[rows]
            picked[rows], normaliser[rows], entropy[rows] = score_rows(
                logits[rows].to(dtype, copy=True), targets[rows], temperature, cut
            )
        ctx.save_for_backward(logits, targets, normaliser, entropy, kept)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return picked, entropy

    @staticmethod
    def backward(ctx: Any, pull: Tensor | None, spread: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        if pull is None and spread is None:
            return None, None, None, None
        logits, targets, normaliser, entropy, kept = ctx.saved_tensors
        pull = torch.zeros_like(normaliser) if pull is None else pull
        grad = torch.empty_like(logits)
        for rows in _chunks(logits):
            grad[rows] = pull_rows(
                logits[rows].to(normaliser.dtype, copy=True),
                targets[rows],
                ctx.temperature,
                None if kept is None else kept[rows],
                (normaliser[rows], entropy[rows]),
                pull[rows],
                None if spread is None else spread[rows],
            ).to(grad.dtype)
        return grad, None, None, None


def _chunks(logits: Tensor) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // max(1, logits.shape[1]))
    return [slice(start, start + size) for start in range(0, logits.shape[0], size)]
