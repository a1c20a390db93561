"""Hidden states of rows as a tree of runs of tokens: what rows share from their beginnings is computed once for all.

In causal attention a token's state depends on the tokens before it alone, so rows that begin with the same tokens have
the same states there, in which their gradients meet. The runs lie one after another; the queries of each attend to the
keys of its path. Any decoder of transformers computes this that looks its attention up there; `proof.packs` tries it on
the weights at hand. At the end: the widths that rows and packed micro-batches are padded to.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import varlen
from verizero.pipeline.models.varlen import Ends, Piece
from verizero.pipeline.types import Path

NAME = "verizero_runs"
"""The name of our attention in transformers, where a model looks its attention up."""
UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments of attentions that add something which is not computed here."""
MIN_CALL_TOKENS = 512
"""A call of attention with fewer tokens is not ended early: it costs as much as some padding."""

_NUMBERS = itertools.count()
_LAYOUTS: weakref.WeakValueDictionary[int, Runs] = weakref.WeakValueDictionary()

Stretch = tuple[int, int]
"""The first of some numbers that follow one another, and how many they are."""


@dataclass(frozen=True)  # with room for what is cached
class Runs:
    """The N tokens that are computed for rows [B, T], all on one device, in pieces; the last may be padding."""

    source: Tensor
    """int64 [N]: the place of each token among B * T."""
    positions: Tensor
    """int64 [N]: the place of each token in its row."""
    place: Tensor
    """int64 [B, T]: the number of the computed token for each token but a row's last one; 0 for the rest."""
    keys: Tensor
    """int64 [M]: the tokens that each piece sees, piece after piece as their tokens lie."""
    table: Tensor
    """int64 [P, 4]: `pieces` on the device."""
    pieces: tuple[Piece, ...]
    """Runs of the rows' tree, or padding, sorted by size, those that see no other piece first."""

    @cached_property
    def key(self) -> Tensor:
        """int64 []: by which compiled code finds this layout, for as long as it lives."""
        number = next(_NUMBERS)
        _LAYOUTS[number] = self
        return torch.tensor(number)

    @classmethod
    def of(
        cls, paths: Sequence[Path], width: int, *, ends: bool = False, most: int = 1, device: torch.device | str = "cpu"
    ) -> Runs:
        """Return the runs of rows [B, T] with these paths, on the CPU; T is `width`.

        A row's last token predicts nothing, and is left out without `ends`, unless another row needs it. Padding
        follows the last row as `packed_width` says for micro-batches of `most` tokens on `device`.
        """
        num_rows: Counter[int] = Counter(run.number for path in paths for run in path)
        stops = _stops(paths, ends)
        source, keys, pieces = list[Stretch](), list[Stretch](), list[Piece]()
        in_rows, computed = list[Stretch](), list[Stretch]()  # places among B * T, and the tokens computed for them
        total = num_keys = 0
        starts: dict[int, int] = {}  # the first computed token of each run
        for i, path in enumerate(paths):
            seen, begin = list[Stretch](), 0
            for run, following in zip_longest(path, path[1:]):
                # Runs that the same rows have are one piece.
                if following is not None and num_rows[following.number] == num_rows[run.number]:
                    continue
                stop, size = stops[run.number], stops[run.number] - begin
                is_new = run.number not in starts
                seen.append((starts.setdefault(run.number, total), size))
                in_rows.append((i * width + begin, size))
                if is_new and size:
                    source.append(in_rows[-1])
                    keys += seen
                    pieces.append(Piece(total, size, begin, num_keys))
                    total, num_keys = total + size, num_keys + stop
                begin = stop
            computed += seen
        place = torch.zeros(len(paths) * width, dtype=torch.int64)
        place[_joined(in_rows)] = _joined(computed)
        tokens, padding = _joined(source), packed_width(total, most, device) - total
        if padding:  # any token: nothing reads its state
            pieces.append(Piece(total, padding, 0, num_keys))
            keys.append((total, padding))
        pieces = [piece for call in _alike(pieces) for piece in call]
        positions = torch.cat([tokens % width, torch.arange(padding)])
        places = F.pad(tokens, (0, padding)), positions, place.view(-1, width)
        return cls(*places, _joined(keys), torch.tensor(pieces), tuple(pieces))

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the layout, in the order in which `with_tensors` takes them."""
        return [self.source, self.positions, self.place, self.keys, self.table]

    def with_tensors(self, tensors: Iterator[Tensor]) -> Runs:
        """Return the same layout with other tensors, such as copies on a device; they are taken from the iterator."""
        source, positions, place, keys, table = islice(tensors, 5)
        return Runs(source, positions, place, keys, table, self.pieces)

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
        return Ends.of(self.pieces, self.table, self.keys)

    @cached_property
    def _calls(self) -> tuple[tuple[_Call, ...], Tensor]:
        """The calls, and int64 [N], the place of each token among all queries of all calls."""
        calls, begins, begin, done, device = [], [], 0, 0, self.table.device
        for pieces in _alike(self.pieces):
            calls.append(_Call.of(pieces, self.table[done : done + len(pieces)], self.keys))
            rows, longest = calls[-1].queries.shape
            begins.append(begin + longest * torch.arange(rows, device=device))
            begin, done = begin + rows * longest, done + rows
        start, size = self.table[:, 0], self.table[:, 1]
        in_order, token = start.argsort(), torch.arange(len(self.source), device=device)
        ends = size.index_select(0, in_order).cumsum(0)
        of = in_order.index_select(0, torch.searchsorted(ends, token, right=True))  # the piece of each token
        return tuple(calls), token + (torch.cat(begins) - start).index_select(0, of)


def _joined(stretches: Sequence[Stretch]) -> Tensor:
    """Return int64 [n]: the numbers of all stretches, one after another."""
    first, size = torch.tensor(stretches, dtype=torch.int64).view(-1, 2).unbind(1)
    return torch.arange(int(size.sum())) + (first + size - size.cumsum(0)).repeat_interleave(size)


def _stops(paths: Sequence[Path], ends: bool) -> dict[int, int]:
    """Return, by the number of each run, where the tokens of it end that some row needs."""
    stops: dict[int, int] = {}
    for path in paths:
        last = path[-1].end - (not ends)
        for run in path:
            stops[run.number] = max(stops.get(run.number, 0), min(run.end, last))
    return stops


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
    def of(cls, pieces: Sequence[Piece], table: Tensor, all_keys: Tensor) -> _Call:
        """Return the call of pieces; `table` [R, 4] has their numbers on the device, `all_keys` [M] what all see."""
        longest, most = max(p.size for p in pieces), max(p.num_before + p.size for p in pieces)
        start, size, before, first_key = table[:, :, None].unbind(1)
        query, key = (torch.arange(n, device=table.device)[None] for n in (longest, most))
        # Padding repeats a piece's first token; padded keys come after all that a real query sees.
        queries = start + torch.where(query < size, query, 0)
        if not pieces[0].num_before:
            return cls(queries, queries, before[:, 0], True)
        seen = first_key + torch.where(key < before + size, key, 0)
        return cls(queries, all_keys.index_select(0, seen.flatten()).view(seen.shape), before[:, 0], False)

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
    """Return [N, H] after the last block and norm, of ids int64 [N]. Raises: ConfigError for unknown attention."""
    _enable(model)
    # transformers takes a mask of four dimensions as it is, and makes none of all pairs. `attention` does not read it.
    unread = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids.device)
    named = {"position_ids": runs.positions[None], "attention_mask": unread, "runs": runs, "layout": runs.key}
    hidden: Tensor = model.base_model(input_ids=ids[None], use_cache=False, **named).last_hidden_state
    return hidden[0]


def _enable(model: Any) -> None:
    """Make the model's attention take runs; without them it computes as before."""
    if model.config._attn_implementation == NAME:
        return
    if model.config._attn_implementation != "sdpa":
        raise ConfigError(f"packed rows: the attention is {model.config._attn_implementation!r}, which takes none")
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    runs: Runs | None = None,
    layout: Tensor | None = None,
    scaling: float | None = None,
    **named: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' scaled dot product attention does; with runs, as they say.

    query [B, heads, t, D], key and value [B, key heads, t, D]; result [B, t, heads, D]. With runs B is 1. layout: their
    `key`.
    Raises: ConfigError for an attention that adds something which is not computed here.
    """
    if runs is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        plain: tuple[Tensor, None]
        plain = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **named)
        return plain
    if (what := next((name for name in UNSUPPORTED if named.get(name) is not None), None)) is not None:
        raise ConfigError(f"packed rows: the attention has {what}; set train.packing: off")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    window = named.get("sliding_window")
    if torch.compiler.is_compiling() and varlen.has_own_gradients(query.device, query.dtype, query.shape[3]):
        assert layout is not None
        return opaque(q, k, v, layout, scaling, window)[0][None], None
    return _attend(runs, q, k, v, scaling, window)[None], None


# Its calls are other ones for each layout, so they are not compiled.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend(runs: Runs, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
    return runs.attend(query, key, value, scale, window)


@torch.library.custom_op("verizero::attend", mutates_args=())
def opaque(
    query: Tensor, key: Tensor, value: Tensor, layout: Tensor, scale: float | None, window: int | None
) -> tuple[Tensor, Tensor]:
    """Attend by the kernel as `Runs.attend`: one call within compiled code, whatever the layout, the runs' `key`.

    Returns the result, and the logarithms of sums [heads, N], which the gradients take.
    """
    return varlen.attend_with_sums(query, key, value, _LAYOUTS[int(layout)]._ends, scale, window)


@opaque.register_fake
def _shapes(query: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32)


@torch.library.custom_op("verizero::attend_backward", mutates_args=())
def opaque_backward(
    pull: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    layout: Tensor,
    scale: float | None,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value; pull: that of `out`, which `opaque` returned with `sums`."""
    return varlen.gradients(pull, query, key, value, out, sums, _LAYOUTS[int(layout)]._ends, scale, window)


@opaque_backward.register_fake
def _shapes_of_gradients(pull: Tensor, *tensors: Any) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = tensors[:3]
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, layout, ctx.scale, ctx.window = inputs
    ctx.save_for_backward(query, key, value, *output, layout)


def _backward(ctx: Any, pull: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, layout = ctx.saved_tensors
    return (*opaque_backward(pull, *tensors, layout, ctx.scale, ctx.window), None, None, None)


opaque.register_autograd(_backward, setup_context=_keep)


MULTIPLE = 64
ALIKE = 0.8
"""Rows shorter than this share of the longest one next to them would be padded much."""


def forward_width(width: int, device: torch.device | str) -> int:
    """Return `width` tokens rounded up to a multiple of 64, where kernels are fastest; on the CPU `width` itself."""
    return width if torch.device(device).type == "cpu" else -(-width // MULTIPLE) * MULTIPLE


def padded_width(width: int, device: torch.device | str) -> int:
    """Return the width that rows of `width` tokens are padded to on this device; on the CPU `width` itself.

    It is one more than a multiple of 64: the forward leaves the last token out, from which nothing is predicted.
    """
    return forward_width(width - 1, device) + 1


def packed_width(tokens: int, most: int, device: torch.device | str) -> int:
    """Return the number of tokens that a packed micro-batch of `tokens` is padded to, of which full ones have `most`.

    On the CPU it is `tokens`. Elsewhere a quarter, a half or all of `most`, rounded up to a multiple of 64, or for a
    row that is longer a multiple of that, so that there are few shapes whatever the rows.
    """
    if torch.device(device).type == "cpu":
        return tokens
    for share in (4, 2, 1):
        width = -(-most // share // MULTIPLE) * MULTIPLE
        if tokens <= width:
            return width
    return -(-tokens // width) * width
