"""Hidden states of rows that lie one after another; a prompt that rows share is computed once for all of them.

In causal attention a token's state depends on the tokens before it alone, so rows with the same prompt have the same
states there, in which the gradients of all responses meet. Any decoder of transformers computes this that looks its
attention up there; `proof.packs` tries it on the weights at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import attentions, varlen
from verizero.pipeline.models.varlen import Ends, Piece
from verizero.pipeline.models.widths import ALIKE, packed_width
from verizero.pipeline.types import PromptOf

NAME = "verizero_runs"
MIN_CALL_TOKENS = 512
"""A call of attention with fewer tokens is not ended early: it costs as much as some padding."""


@dataclass(frozen=True)  # with room for what is cached
class Runs:
    """The N tokens that are computed for rows [B, T], all on one device, in pieces; the last may be padding."""

    source: Tensor
    """int64 [N]: the place of each token among B * T."""
    positions: Tensor
    """int64 [N]: the place of each token in its row."""
    place: Tensor
    """int64 [B, T]: the number of the computed token for each token but a row's last one; 0 for the rest."""
    table: Tensor
    """int64 [P, 4]: `pieces` on the device."""
    pieces: tuple[Piece, ...]
    """A prompt that rows share, what follows it in one of them, a row alone, or padding. Those of similar size are
    neighbours here, those that see no other piece first."""

    @classmethod
    def of(
        cls,
        rows: Sequence[PromptOf],
        width: int,
        *,
        ends: bool = False,
        most: int = 1,
        device: torch.device | str = "cpu",
    ) -> Runs:
        """Return the runs of rows [B, T] on the CPU; T is `width`. A prompt of no tokens is of a row alone.

        A row's last token predicts nothing, and is left out without `ends`. Padding follows the last row as
        `packed_width` says for micro-batches of `most` tokens on `device`.
        """
        source, positions, total = list[Tensor](), list[Tensor](), 0
        place = torch.zeros(len(rows), width, dtype=torch.int64)
        prompts: dict[int, Piece] = {}
        pieces: list[Piece] = []

        def add(row: int, begin: int, end: int, before: int = 0) -> Piece:
            nonlocal total
            own = torch.arange(begin, end)
            source.append(row * width + own)
            positions.append(own)
            pieces.append(Piece(total, end - begin, before, begin))
            total += end - begin
            return pieces[-1]

        for i, (number, size, row_tokens) in enumerate(rows):
            if size and number not in prompts:
                prompts[number] = add(i, 0, size)
            before = prompts[number].start if size else 0
            place[i, :size] = torch.arange(before, before + size)
            end = row_tokens if ends else row_tokens - 1
            if end > size:
                response = add(i, size, end, before)
                place[i, size:end] = response.start + torch.arange(response.size)
        padding = packed_width(total, most, device) - total
        if padding:
            pieces.append(Piece(total, padding))
            source.append(torch.zeros(padding, dtype=torch.int64))  # any token: nothing reads its state
            positions.append(torch.arange(padding))
        pieces = [piece for call in _alike(pieces) for piece in call]
        return cls(torch.cat(source), torch.cat(positions), place, torch.tensor(pieces), tuple(pieces))

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the layout, in the order in which `with_tensors` takes them."""
        return [self.source, self.positions, self.place, self.table]

    def with_tensors(self, tensors: Iterator[Tensor]) -> Runs:
        """Return the same layout with other tensors, such as copies on a device; they are taken from the iterator."""
        source, positions, place, table = (next(tensors) for _ in range(4))
        return Runs(source, positions, place, table, self.pieces)

    def in_longer_rows(self, width: int) -> Runs:
        """Return the same layout for rows of one token more than `width`, the present one."""
        return replace(self, source=self.source + self.source // width, place=F.pad(self.place, (0, 1)))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, window: int | None = None
    ) -> Tensor:
        """Return [N, heads, D] for query [N, heads, D], key and value [N, key heads, D] of the computed tokens.

        By the kernel for pieces of different lengths where it runs, else in a few calls of similar pieces. `scale`: of
        the products, 1 / sqrt(D) if None. `window`: the number of tokens that a token sees, itself included; None: all
        before it.
        """
        kernel = varlen.kernel_for(query.device, query.dtype, query.shape[2])
        if kernel is not None:
            return varlen.attend(query, key, value, self._ends, scale, window, kernel)
        calls, order = self._calls
        attended = torch.cat([call.attend(query, key, value, scale, window) for call in calls])
        return attended.index_select(0, order)

    @cached_property
    def _ends(self) -> Ends:
        return Ends.of(self.pieces, self.table)

    @cached_property
    def _calls(self) -> tuple[tuple[_Call, ...], Tensor]:
        """The calls, and int64 [N], the place of each token among all queries of all calls."""
        calls, begins, begin, done, device = [], [], 0, 0, self.table.device
        for pieces in _alike(self.pieces):
            calls.append(_Call.of(pieces, self.table[done : done + len(pieces)]))
            rows, longest = calls[-1].queries.shape
            begins.append(begin + longest * torch.arange(rows, device=device))
            begin, done = begin + rows * longest, done + rows
        start, size = self.table[:, 0], self.table[:, 1]
        in_order, token = start.argsort(), torch.arange(len(self.source), device=device)
        ends = size.index_select(0, in_order).cumsum(0)
        of = in_order.index_select(0, torch.searchsorted(ends, token, right=True))  # the piece of each token
        return tuple(calls), token + (torch.cat(begins) - start).index_select(0, of)


def _alike(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Group pieces into calls: of similar size, longest first, so that little is padded; causal ones first."""
    groups: list[list[Piece]] = []
    for sees_another in (False, True):
        own = [p for p in pieces if (p.num_before > 0) is sees_another]
        tokens = -1  # of the last group; below 0 there is none of this kind
        for piece in sorted(own, key=lambda p: (-p.size, p.start)):
            if tokens < 0 or (tokens >= MIN_CALL_TOKENS and piece.size < ALIKE * groups[-1][0].size):
                groups.append([])
                tokens = 0
            groups[-1].append(piece)
            tokens += piece.size
    return groups


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of attention: R pieces of similar size, Q tokens each with padding, over K tokens each."""

    queries: Tensor
    """int64 [R, Q]: which of the computed tokens."""
    keys: Tensor
    """int64 [R, K], in the order of their positions."""
    before: Tensor
    """int64 [R]: the number of tokens before the first query of each piece."""
    is_causal: bool
    """Nothing is before any piece: token i sees the first i + 1 keys."""

    @classmethod
    def of(cls, pieces: Sequence[Piece], table: Tensor) -> _Call:
        """Return the call of pieces, the longest first; `table` [R, 4] has the same numbers on the device."""
        longest, most = pieces[0].size, max(p.num_before + p.size for p in pieces)
        start, size, before, num_before = table[:, :, None].unbind(1)
        query, key = (torch.arange(n, device=table.device)[None] for n in (longest, most))
        # Padding repeats a piece's first token; padded keys come after all that a real query sees.
        queries = start + torch.where(query < size, query, 0)
        if not pieces[0].num_before:
            return cls(queries, queries, num_before[:, 0], True)
        own = start + torch.where(key - num_before < size, key - num_before, 0)
        return cls(queries, torch.where(key < num_before, before + key, own), num_before[:, 0], False)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Return [R * Q, heads, D]; the arguments are those of `Runs.attend`."""
        q, k, v = (_picked(x, at) for x, at in ((query, self.queries), (key, self.keys), (value, self.keys)))
        mask = self._mask(window)
        gqa = q.shape[2] != k.shape[2]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=gqa
        )
        return out.transpose(1, 2).flatten(0, 1)

    def _mask(self, window: int | None) -> Tensor | None:
        """Return bool [R, 1, Q, K], who sees whom, with a window only its last tokens; None if `is_causal` says it."""
        num_keys = self.keys.shape[1]
        is_cut = window is not None and window < num_keys
        if self.is_causal and not is_cut:
            return None
        device = self.before.device
        query = self.before[:, None, None, None] + torch.arange(self.queries.shape[1], device=device)[:, None]
        key = torch.arange(num_keys, device=device)
        return (key <= query) & (key > query - window) if is_cut and window is not None else key <= query


def _picked(x: Tensor, at: Tensor) -> Tensor:
    """Return [R, L, heads, D]: the tokens `at` [R, L] of x [N, heads, D]."""
    return x.index_select(0, at.flatten()).view(*at.shape, *x.shape[1:])


def moved(tensors: Sequence[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Return copies of int64 tensors on the device, which come there in one copy: the host waits for each one."""
    if device.type == "cpu" or not tensors:
        return iter(tensors)
    flat = torch.cat([t.flatten() for t in tensors]).to(device)
    parts = torch.split(flat, [t.numel() for t in tensors])
    return (part.view(t.shape) for part, t in zip(parts, tensors, strict=True))


def states(model: Any, ids: Tensor, runs: Runs) -> Tensor:
    """Return [N, H] after the last block and norm, for the computed tokens; ids int64 [N].

    Raises: ConfigError if the attention adds something that is not computed here.
    """
    _enable(model)
    # transformers takes a mask of four dimensions as it is, and makes none of all pairs. `attention` does not read it.
    unread = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids.device)
    hidden: Tensor = model.base_model(
        input_ids=ids[None], position_ids=runs.positions[None], attention_mask=unread, use_cache=False, runs=runs
    ).last_hidden_state
    return hidden[0]


def _enable(model: Any) -> None:
    """Make the model's attention take runs; without them it computes as before."""
    if model.config._attn_implementation == NAME:
        return
    if model.config._attn_implementation != "sdpa":
        raise ConfigError(f"packed rows: the attention is {model.config._attn_implementation!r}, which takes none")
    # Compiled blocks leave it as it is: a layout is another one for each micro-batch.
    attentions.enable(model, NAME, torch.compiler.disable(attention))  # type: ignore[no-untyped-call]


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    runs: Runs | None = None,
    scaling: float | None = None,
    **named: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' scaled dot product attention does; with runs, as they say.

    query [B, heads, t, D], key and value [B, key heads, t, D]; result [B, t, heads, D]. With runs B is 1.
    Raises: ConfigError for an attention that adds something which is not computed here.
    """
    if runs is None:
        return attentions.plain(module, query, key, value, attention_mask, scaling=scaling, **named)
    if (what := attentions.unsupported(named)) is not None:
        raise ConfigError(f"packed rows: the attention has {what}; set train.packing: off, train.share_prompts: false")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return runs.attend(q, k, v, scaling, named.get("sliding_window"))[None], None
