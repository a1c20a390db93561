"""Log-probs and entropies where the output embeddings are divided: piece by piece of the vocabulary.

Each piece of `models.divided_table` gives log-normalisers and entropies among its own columns, and what they are among
all columns follows from these. No rank has the table or, but for some tokens at a time, logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.models.cpu import product
from verizero.pipeline.models.divided_table import DividedHead, DividedTable, wide_product
from verizero.pipeline.rl.logprobs import joined_columns, pull_columns, score_columns


@dataclass(frozen=True, slots=True)
class Scoring:
    """The tokens to score, and the way."""

    targets: Tensor
    """int64 [N]."""
    temperature: float
    kept: Tensor | None
    """int64 [N, K]: as for `logprobs_and_entropy`."""
    chunk_tokens: int
    """At most so many rows of logits exist at once, or as many numbers of the kernel."""
    with_kernel: bool
    """The kernel of `models.kernels.log_probs` computes; it has no kept sets."""


def divided_logprobs(head: DividedHead, hidden: Tensor, how: Scoring) -> tuple[Tensor, Tensor]:
    """Return log-probs of the targets and entropies, [N] in float32, for hidden [N, H]. Every rank must call it."""
    both: tuple[Tensor, Tensor] = _DividedHead.apply(hidden, head.weight, head.table, how)  # type: ignore[no-untyped-call]
    return both


class _DividedHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Any, table: DividedTable, how: Scoring) -> tuple[Tensor, Tensor]:
        hidden = hidden.contiguous()
        scored = []
        for piece, rows in table.weights(weight.to_local()):
            if piece.rows:
                at = table.places(how.targets, piece)
                score = _score_by_kernel if how.with_kernel else _score_by_torch
                kept = None if how.kept is None else table.places(how.kept, piece)
                scored.append(score(hidden, rows, at, kept, how))
        normalisers, entropies, hits = (torch.stack(parts) for parts in zip(*scored, strict=True))
        normaliser, entropy = joined_columns(normalisers, entropies)
        ctx.save_for_backward(hidden, weight, normaliser, entropy)
        ctx.table, ctx.how = table, how
        ctx.set_materialize_grads(False)
        return hits.sum(0) - normaliser, entropy  # one piece has the target, and the others have 0

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, pull: Tensor | None, push: Tensor | None = None) -> tuple[Tensor | None, ...]:
        (hidden, weight, normaliser, entropy), table, how = ctx.saved_tensors, ctx.table, ctx.how
        pulls = (torch.zeros_like(normaliser) if pull is None else pull, push)
        to_hidden = torch.zeros_like(hidden, dtype=normaliser.dtype)
        for piece, rows in table.weights(weight.to_local()):
            to_piece = torch.zeros_like(rows, dtype=normaliser.dtype) if ctx.needs_input_grad[1] else None
            if piece.rows:
                at = table.places(how.targets, piece)
                into = to_hidden, to_piece
                if how.with_kernel:
                    _pull_by_kernel(hidden, rows, at, (normaliser, entropy), pulls, into, how)
                else:
                    kept = None if how.kept is None else table.places(how.kept, piece)
                    _pull_by_torch(hidden, rows, (at, kept), (normaliser, entropy), pulls, into, how)
            if to_piece is not None:
                table.add_up(to_piece, piece, weight)
        return to_hidden.to(hidden.dtype), None, None, None


def _score_by_kernel(
    hidden: Tensor, weight: Tensor, at: Tensor, kept: Tensor | None, how: Scoring
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-normalisers, entropies and tempered logits of the targets among some columns; 0 for a place of -1."""
    from verizero.pipeline.models.kernels import log_probs

    tiles = log_probs.tiles_of(weight.dtype)
    highest, total, entropy, hit = log_probs.score_columns(hidden, weight, at, how.temperature, True, tiles)
    return highest + total.log(), entropy, hit


def _score_by_torch(
    hidden: Tensor, weight: Tensor, at: Tensor, kept: Tensor | None, how: Scoring
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same as `_score_by_kernel`; kept [N, K] are places too."""
    made = []
    for rows in _chunks(how):
        logits = product(hidden[rows], weight).to(_wide(hidden))
        hit = logits.gather(1, at[rows].clamp(min=0)[:, None])[:, 0] / how.temperature
        scores = score_columns(logits, how.temperature, _outside(how, rows, kept, len(weight)))
        made.append((*scores, torch.where(at[rows] >= 0, hit, 0.0)))
    normaliser, entropy, hits = (torch.cat(parts) for parts in zip(*made, strict=True))
    return normaliser, entropy, hits


def _pull_by_kernel(
    hidden: Tensor,
    weight: Tensor,
    at: Tensor,
    scored: tuple[Tensor, Tensor],
    pulls: tuple[Tensor, Tensor | None],
    into: tuple[Tensor, Tensor | None],
    how: Scoring,
) -> None:
    """Add what some columns pull on hidden states, and on their weights."""
    from verizero.pipeline.models.kernels import log_probs

    scratch = min(log_probs.SCRATCH_ELEMENTS, how.chunk_tokens * len(weight))
    tiles = log_probs.tiles_of(weight.dtype)
    log_probs.pull_columns(hidden, weight, at, how.temperature, scored, pulls, into, (scratch, tiles))


def _pull_by_torch(
    hidden: Tensor,
    weight: Tensor,
    places: tuple[Tensor, Tensor | None],
    scored: tuple[Tensor, Tensor],
    pulls: tuple[Tensor, Tensor | None],
    into: tuple[Tensor, Tensor | None],
    how: Scoring,
) -> None:
    """Do the same as `_pull_by_kernel`."""
    (at, kept), (normaliser, entropy), (pull, push), (to_hidden, to_weight) = places, scored, pulls, into
    for rows in _chunks(how):
        pulled = pull_columns(
            product(hidden[rows], weight).to(normaliser.dtype),
            how.temperature,
            _outside(how, rows, kept, len(weight)),
            (normaliser[rows], entropy[rows]),
            pull[rows],
            None if push is None else push[rows],
        )
        own = torch.where(at[rows] >= 0, pull[rows] / how.temperature, 0.0)
        pulled.scatter_add_(1, at[rows].clamp(min=0)[:, None], own[:, None])
        pulled = pulled.to(weight.dtype)
        to_hidden[rows] += wide_product(pulled, weight)
        if to_weight is not None:
            to_weight += wide_product(pulled.t(), hidden[rows])


def _outside(how: Scoring, rows: slice, kept: Tensor | None, columns: int) -> Tensor | None:
    """Return bool [n, columns]: True for tokens outside the set that was kept for their row; None without sets."""
    if how.kept is None or kept is None:
        return None
    has_set = (how.kept[rows] >= 0).any(1)[:, None]
    outside = has_set.repeat(1, columns + 1)  # the last column takes what is in other pieces
    at = torch.where(kept[rows] >= 0, kept[rows], columns)
    return outside.scatter_(1, at, False)[:, :columns]


def _chunks(how: Scoring) -> Iterator[slice]:
    for start in range(0, max(1, len(how.targets)), how.chunk_tokens):
        yield slice(start, start + how.chunk_tokens)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
