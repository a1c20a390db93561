"""Hidden states of rows that lie one after another; a prompt is computed once for all responses that begin with it.

In causal attention a token's state depends on the tokens before it alone, so rows with the same prompt have the same
states there. The gradients of all responses meet in those states. What a token attends to is gathered by indices, which
any decoder of transformers can use that looks its attention up there; `is_proved` tries it on the weights at hand.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.packed import ALIKE
from verizero.pipeline.models.proof import agree, evaluating, probe_ids
from verizero.pipeline.models.short_attention import attend, is_short
from verizero.pipeline.models.varlen import Piece, Runs
from verizero.pipeline.models.widths import packed_width
from verizero.pipeline.types import PackedAs, PromptOf

NAME = "verizero_prompts"
UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments of attentions that add something which is not computed here."""
MIN_CALL_TOKENS = 512
"""A call of attention with fewer tokens is not ended early: it costs as much as some padding."""

_PROVED: weakref.WeakKeyDictionary[Any, dict[bool, bool]] = weakref.WeakKeyDictionary()


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

    def mask(self, window: int | None) -> Tensor | None:
        """Return bool [R, 1, Q, K], who sees whom, with a window only its last tokens; None if `is_causal` says it."""
        num_keys = self.keys.shape[1]
        is_cut = window is not None and window < num_keys
        if self.is_causal and not is_cut:
            return None
        device = self.before.device
        query = self.before[:, None, None, None] + torch.arange(self.queries.shape[1], device=device)[:, None]
        key = torch.arange(num_keys, device=device)
        return (key <= query) & (key > query - window) if is_cut and window is not None else key <= query


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """The N tokens that are computed for rows [B, T], all on one device; the last of them may be padding."""

    source: Tensor
    """int64 [N]: the place of each token among B * T."""
    positions: Tensor
    """int64 [N]: the place of each token in its row."""
    place: Tensor
    """int64 [B, T]: the number of the computed token for each token but a row's last one; 0 for the rest."""
    calls: tuple[_Call, ...]
    order: Tensor
    """int64 [N]: the place of each computed token among all queries of all calls."""
    runs: Runs | None = None
    """The same attention without calls and without padding. None: in calls."""

    @classmethod
    def of(
        cls, rows: Sequence[PromptOf], width: int, packing: PackedAs | None = None, ends: bool = False
    ) -> SharedPrompts:
        """Return the layout of rows [B, T] on the CPU; T is `width`. A prompt of no tokens is of a row alone.

        A row's last token predicts nothing, and is left out without `ends`. `packing`: the number of tokens is a fixed
        one, for which padding follows the last row.
        """
        source, positions, total = list[Tensor](), list[Tensor](), 0
        place = torch.zeros(len(rows), width, dtype=torch.int64)
        prompts: dict[int, Piece] = {}
        responses: list[Piece] = []

        def add(row: int, begin: int, end: int, before: int = 0) -> Piece:
            nonlocal total
            own = torch.arange(begin, end)
            source.append(row * width + own)
            positions.append(own)
            piece = Piece(total, end - begin, before, begin)
            total += piece.size
            return piece

        for i, (number, size, row_tokens) in enumerate(rows):
            if size and number not in prompts:
                prompts[number] = add(i, 0, size)
            before = prompts[number].start if size else 0
            place[i, :size] = torch.arange(before, before + size)
            end = row_tokens if ends else row_tokens - 1
            if end > size:
                responses.append(add(i, size, end, before))
                place[i, size:end] = responses[-1].start + torch.arange(responses[-1].size)
        pieces = sorted([*prompts.values(), *responses])
        if packing is not None:
            padding = packed_width(total, packing.tokens, rounded=packing.in_runs) - total
            if padding:
                pieces.append(Piece(total, padding))
                source.append(torch.zeros(padding, dtype=torch.int64))  # any token: nothing reads its state
                positions.append(torch.arange(padding))
            if packing.in_runs:
                nothing = torch.zeros(0, dtype=torch.int64)
                return cls(torch.cat(source), torch.cat(positions), place, (), nothing, Runs.of(pieces))
            total += padding
        groups = [*_alike(list(prompts.values())), *_alike(responses)]
        order = torch.zeros(total, dtype=torch.int64)
        begin = 0
        for pieces in groups:
            for piece in pieces:
                order[piece.start : piece.start + piece.size] = begin + torch.arange(piece.size)
                begin += pieces[0].size
        return cls(torch.cat(source), torch.cat(positions), place, tuple(map(_call, groups)), order)

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the layout, in the order in which `with_tensors` takes them."""
        return [
            self.source,
            self.positions,
            self.place,
            self.order,
            *(t for call in self.calls for t in (call.queries, call.keys, call.before)),
            *(() if self.runs is None else self.runs.tensors()),
        ]

    def with_tensors(self, tensors: Iterator[Tensor]) -> SharedPrompts:
        """Return the same layout with other tensors, such as copies on a device; they are taken from the iterator."""
        source, positions, place, order = (next(tensors) for _ in range(4))
        calls = tuple(_Call(next(tensors), next(tensors), next(tensors), call.is_causal) for call in self.calls)
        runs = None if self.runs is None else self.runs.with_tensors(tensors)
        return SharedPrompts(source, positions, place, calls, order, runs)

    def in_longer_rows(self, width: int) -> SharedPrompts:
        """Return the same layout for rows of one token more than `width`, the present one."""
        return replace(self, source=self.source + self.source // width, place=F.pad(self.place, (0, 1)))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, window: int | None = None
    ) -> Tensor:
        """Return [N, heads, D] for query [N, heads, D], key and value [N, key heads, D] of the computed tokens.

        `scale`: of the products, 1 / sqrt(D) if None. `window`: the number of tokens that a token sees, itself
        included; None: all before it.
        """
        if self.runs is not None:
            return self.runs.attend(query, key, value, scale, window)
        gqa = query.shape[1] != key.shape[1]
        attended = []
        for call in self.calls:
            q, k, v = (_picked(x, at) for x, at in ((query, call.queries), (key, call.keys), (value, call.keys)))
            mask = call.mask(window)
            if is_short(query, call.keys.shape[1]):
                attended.append(attend(q, k, v, mask, scale).flatten(0, 1))
                continue
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=gqa
            )
            attended.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(attended).index_select(0, self.order)


def _picked(x: Tensor, at: Tensor) -> Tensor:
    """Return [R, L, heads, D]: the tokens `at` [R, L] of x [N, heads, D]."""
    return x.index_select(0, at.flatten()).view(*at.shape, *x.shape[1:])


def _alike(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Group pieces of similar size, longest first, so that little is padded."""
    groups: list[list[Piece]] = []
    tokens = 0
    for piece in sorted(pieces, key=lambda p: (-p.size, p.start)):
        if not groups or (tokens >= MIN_CALL_TOKENS and piece.size < ALIKE * groups[-1][0].size):
            groups.append([])
            tokens = 0
        groups[-1].append(piece)
        tokens += piece.size
    return groups


def _call(pieces: Sequence[Piece]) -> _Call:
    most = max(p.num_before + p.size for p in pieces)
    longest = pieces[0].size
    start, size, before, num_before = (torch.tensor(x)[:, None] for x in zip(*pieces, strict=True))
    query, key = torch.arange(longest)[None], torch.arange(most)[None]
    # Padding repeats a piece's first token; padded keys come after all that a real query sees.
    queries = start + torch.where(query < size, query, 0)
    own = start + torch.where(key - num_before < size, key - num_before, 0)
    keys = torch.where(key < num_before, before + key, own)
    is_causal = not bool(num_before.any())
    return _Call(queries, keys, num_before[:, 0], is_causal)


def moved(tensors: Sequence[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Return copies of int64 tensors on the device, which come there in one copy: the host waits for each one."""
    if device.type == "cpu" or not tensors:
        return iter(tensors)
    flat = torch.cat([t.flatten() for t in tensors]).to(device)
    parts = torch.split(flat, [t.numel() for t in tensors])
    return (part.view(t.shape) for part, t in zip(parts, tensors, strict=True))


def states(model: Any, ids: Tensor, layout: SharedPrompts) -> Tensor:
    """Return [N, H] after the last block and norm, for the computed tokens; ids int64 [N].

    Raises: ConfigError if the attention adds something that is not computed here.
    """
    _enable(model)
    # transformers takes a mask of four dimensions as it is, and makes none of all pairs. `attention` does not read it.
    unread = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids.device)
    hidden: Tensor = model.base_model(
        input_ids=ids[None],
        position_ids=layout.positions[None],
        attention_mask=unread,
        use_cache=False,
        shared_prompts=layout,
    ).last_hidden_state
    return hidden[0]


def is_proved(model: Any, in_runs: bool = False) -> bool:
    """True if the model's states of rows that share prompts are those of the rows alone; tried once for each model.

    `in_runs`: with attention of variable length.
    """
    known = _PROVED.setdefault(model, {})
    if in_runs not in known:
        known[in_runs] = _agrees(model, in_runs)
    return known[in_runs]


def _agrees(model: Any, in_runs: bool) -> bool:
    rows = [PromptOf(0, 3, 7), PromptOf(1, 2, 4), PromptOf(0, 3, 5), PromptOf(0, 3, 4), PromptOf(2, 0, 6)]
    ids = probe_ids(model, len(rows), 7)
    ids[2:4, :3] = ids[0, :3]
    try:
        with evaluating(model):
            alone = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
            if model.config._attn_implementation not in ("sdpa", NAME):
                return False
            plain = SharedPrompts.of(rows, 7, PackedAs(24, in_runs=True) if in_runs else None)
            layout = plain.with_tensors(moved(plain.tensors(), ids.device))
            ours = states(model, ids.flatten()[layout.source], layout)[layout.place]
    except (TypeError, ValueError, AttributeError, RuntimeError, ConfigError):
        return False
    good = all(
        agree(model, ours[i, : row.row_tokens - 1], alone[i, : row.row_tokens - 1]) for i, row in enumerate(rows)
    )
    if not good:  # another architecture raises an error above; here something is wrong
        warnings.warn(
            f"packed rows of this {model.config.model_type} are not what they are alone, so rows are padded; "
            "train.packing: off spares the trial",
            stacklevel=2,
        )
    return good


def _enable(model: Any) -> None:
    """Make the model's attention take a layout; without one it computes as before."""
    if model.config._attn_implementation == NAME:
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    # Compiled blocks leave it as it is: a layout is another one for each micro-batch.
    AttentionInterface.register(NAME, torch.compiler.disable(attention))  # type: ignore[no-untyped-call]
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    shared_prompts: SharedPrompts | None = None,
    scaling: float | None = None,
    **named: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' scaled dot product attention does; with a layout, as that says.

    query [B, heads, t, D], key and value [B, key heads, t, D]; result [B, t, heads, D]. With a layout B is 1.
    Raises: ConfigError for an attention that adds something which is not computed here.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if shared_prompts is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **named
        )
        return plain
    what = next((name for name in UNSUPPORTED if named.get(name) is not None), None)
    if what is not None:
        raise ConfigError(f"train.share_prompts=true: the attention has {what}; set train.share_prompts: false")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return shared_prompts.attend(q, k, v, scaling, named.get("sliding_window"))[None], None
