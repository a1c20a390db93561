"""Input and output embeddings whose table no rank has whole: lookups and logits go over the table in pieces.

Every rank has its rows of the table [V, H]. A piece has as many rows of each rank. It is put together from all ranks
while it is used, and the ranks add up its gradient as soon as they have it. So a piece and the next one are all that
exists of the table, and what travels between ranks is as much as for the whole table. Every rank must do the same
lookups and products in the same order, though its tokens are its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from verizero.pipeline.models.cpu import FastLinear, product


class Piece(NamedTuple):
    """Some rows of every rank: `width` of them from row `start` of a rank on, one rank's after another's."""

    start: int
    width: int
    rows: int
    """Rows of these that the table has. They come first: only the last ranks lack rows."""


@dataclass(frozen=True, slots=True)
class DividedTable:
    """The division of a table of `vocab` rows: as `torch.chunk` does, over the ranks of a process group."""

    vocab: int
    size: int
    """Ranks."""
    group: Any
    dtype: torch.dtype
    """The number type in which rows travel and are multiplied."""
    width: int
    """Rows of each rank in a piece."""

    @property
    def rows(self) -> int:
        """Return the rows of a rank; the last ranks may have fewer."""
        return -(-self.vocab // self.size)

    def pieces(self) -> list[Piece]:
        """Return all pieces, in the order in which every rank goes over them."""
        made = []
        for start in range(0, self.rows, self.width):
            width = min(self.width, self.rows - start)
            real = sum(max(0, min(width, self.vocab - r * self.rows - start)) for r in range(self.size))
            made.append(Piece(start, width, real))
        return made

    def weights(self, own: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        """Return each piece with its weights [rows, H], from this rank's rows `own`; the next one travels meanwhile."""
        pieces = self.pieces()
        coming = self._gathered(own, pieces[0])
        for piece, after in zip(pieces, [*pieces[1:], None], strict=True):
            whole, work = coming
            work.wait()
            if after is not None:
                coming = self._gathered(own, after)
            yield piece, whole[: piece.rows]

    def places(self, ids: Tensor, piece: Piece) -> Tensor:
        """Return for token ids their rows of the piece; -1 for those elsewhere, and for ids below 0."""
        offsets = ids % self.rows - piece.start
        inside = (ids >= 0) & (offsets >= 0) & (offsets < piece.width)
        return torch.where(inside, ids // self.rows * piece.width + offsets, -1)

    def columns(self, values: Tensor, piece: Piece) -> Tensor:
        """Return the columns of a piece, a view [N, ranks, width], of values [N, ranks * rows of a rank]."""
        return values.view(-1, self.size, self.rows)[:, :, piece.start : piece.start + piece.width]

    def add_up(self, gradient: Tensor, piece: Piece, weight: Any) -> None:
        """Add the sum over ranks of the gradient [rows, H] of a piece, in float32, to that of this rank's rows.

        weight: the table as a DTensor. Its gradient grows in place: no rank needs its rows of the gradient twice.
        """
        whole = _padded(gradient.float(), self.size * piece.width)
        mine = whole.new_empty(piece.width, whole.shape[1])
        scatter(mine, whole, self.group)
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        rows = weight.grad.to_local()[piece.start : piece.start + piece.width]
        rows += mine[: len(rows)]

    def _gathered(self, own: Tensor, piece: Piece) -> tuple[Tensor, Any]:
        rows = _padded(own[piece.start : piece.start + piece.width].to(self.dtype), piece.width).contiguous()
        whole = rows.new_empty(self.size * piece.width, rows.shape[1])
        return whole, gather(whole, rows, self.group, in_background=True)


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a [n, k] times b [k, m] in float32, or wider if they are."""
    if a.dtype in (torch.float32, torch.float64):
        return product(a, b.t())
    # Only CUDA has a product whose result is wider than its factors.
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


def _padded(x: Tensor, rows: int) -> Tensor:
    return x if len(x) == rows else torch.cat([x, x.new_zeros(rows - len(x), *x.shape[1:])])


def gather(whole: Tensor, own: Tensor, group: Any, in_background: bool = False) -> Any:
    """Fill `whole` with the tensors `own` of all ranks, one after another; return what can be waited for."""
    # Its older name, where torch has no other, warns where it has; so does that of the sum below.
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return call(whole, own, group=group, async_op=in_background)


def scatter(own: Tensor, whole: Tensor, group: Any, op: Any = dist.ReduceOp.SUM) -> None:
    """Fill `own` with this rank's part of the sum of all ranks' tensors `whole`."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    call(own, whole, op=op, group=group)


def can_divide(embedding: Any, head: Any) -> bool:
    """True if input and output embeddings (None: there are none) are plain modules, whose forward is known here."""
    plain_head = head is None or (type(head) in (nn.Linear, FastLinear) and head.bias is None)
    return type(embedding) is nn.Embedding and embedding.max_norm is None and plain_head


def compute_divided(module: Any, table: DividedTable) -> None:
    """Let an embedding or an output layer compute with a weight that is divided already."""
    module.__class__ = DividedEmbedding if isinstance(module, nn.Embedding) else DividedHead
    module.table = table


class DividedEmbedding(nn.Embedding):
    """An embedding whose weight is a DTensor of the table's rows."""

    table: DividedTable

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows of the token ids [...], [..., H]."""
        rows: Tensor = _Lookup.apply(self.weight, input.flatten(), self.table, self.padding_idx)  # type: ignore[no-untyped-call]
        return rows.view(*input.shape, rows.shape[1])


class DividedHead(nn.Linear):
    """Output embeddings whose weight is a DTensor of the table's rows."""

    table: DividedTable

    def forward(self, input: Tensor) -> Tensor:
        """Return the logits [..., V] of hidden states [..., H]."""
        logits: Tensor = _Logits.apply(input.flatten(0, -2), self.weight, self.table)  # type: ignore[no-untyped-call]
        return logits.view(*input.shape[:-1], self.table.vocab)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Any, ids: Tensor, table: DividedTable, padding: int | None) -> Tensor:
        ctx.save_for_backward(weight, ids)
        ctx.table, ctx.padding = table, padding
        own: Tensor = weight.to_local()
        out = own.new_zeros(len(ids), own.shape[1], dtype=table.dtype)
        for piece, rows in table.weights(own):
            at = table.places(ids, piece)
            if piece.rows:
                out = torch.where((at >= 0)[:, None], rows[at.clamp(min=0)], out)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        (weight, ids), table, gradient = ctx.saved_tensors, ctx.table, gradient.float()
        if ctx.padding is not None:
            ids = torch.where(ids == ctx.padding, -1, ids)
        for piece in table.pieces():
            at = table.places(ids, piece)
            # A row behind the last takes what is elsewhere; an embedding's own backward adds in a fixed order.
            at = torch.where(at < 0, piece.rows, at)
            added = torch.ops.aten.embedding_dense_backward(gradient, at, piece.rows + 1, piece.rows, False)
            table.add_up(added[: piece.rows], piece, weight)
        return None, None, None, None


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Any, table: DividedTable) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.table = table
        out = hidden.new_zeros(len(hidden), table.size * table.rows, dtype=table.dtype)
        for piece, rows in table.weights(weight.to_local()):
            made = F.pad(product(hidden, rows), (0, table.size * piece.width - piece.rows))
            table.columns(out, piece).copy_(made.view(-1, table.size, piece.width))
        return out[:, : table.vocab]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        (hidden, weight), table = ctx.saved_tensors, ctx.table
        to_hidden = torch.zeros_like(hidden, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        gradient = F.pad(gradient, (0, table.size * table.rows - table.vocab)).contiguous()
        for piece, rows in table.weights(weight.to_local()):
            pulled = table.columns(gradient, piece).flatten(1)[:, : piece.rows]
            if to_hidden is not None:
                to_hidden += wide_product(pulled, rows)
            if ctx.needs_input_grad[1]:
                table.add_up(wide_product(pulled.t(), hidden), piece, weight)
        return None if to_hidden is None else to_hidden.to(hidden.dtype), None, None
