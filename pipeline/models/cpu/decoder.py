"""A decode path for the Llama family (Llama, Mistral, Qwen2, Qwen3) that reads the weights of a transformers model.

transformers' own forward spends most of a small model's decode step in Python. Here a step is a handful of fused
products over a preallocated key/value cache. It works on any device and pays most on the CPU; on CUDA a kernel attends
(`pipeline.models.kernels.attention`), whose twin is `Cache.attend`. `check_parity` proves, on the weights at hand, that
both compute the same logits.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.models import kernels
from pipeline.models.cpu.llama import Sizes, unsupported
from pipeline.models.cpu.onednn import product
from pipeline.models.proof import HALF, evaluating, probe_ids


@dataclass(slots=True)
class _Layer:
    """Weights of one block, with q, k, v and gate, up each fused into one product."""

    norm1: Tensor
    qkv: Tensor  # [(nq + 2 nkv) d, H]
    qkv_bias: Tensor | None
    out: Tensor  # [H, nq d]
    out_bias: Tensor | None
    norm2: Tensor
    gate_up: Tensor  # [2 F, H]
    down: Tensor  # [H, F]
    q_norm: Tensor | None
    k_norm: Tensor | None

    def copied(self) -> _Layer:
        """Return the same weights in tensors of their own."""
        return _Layer(*(None if t is None else t.clone() for t in self._weights()))  # type: ignore[arg-type]

    def take(self, other: _Layer) -> None:
        """Copy the other's weights into these tensors."""
        for held, new in zip(self._weights(), other._weights(), strict=True):
            if held is not None and new is not None:
                held.copy_(new)

    def _weights(self) -> list[Tensor | None]:
        return [getattr(self, name) for name in self.__slots__]


@dataclass(frozen=True, slots=True)
class Habits:
    """Choices of a decode path that depend on the device and change no result but by rounding."""

    prefill_tokens: int = 16384
    """Most tokens of prompts, padding included, that are computed at once; a longer prompt is computed alone."""
    align: int = 1
    """Attention reads, and a cache holds, a multiple of so many columns."""
    keys_in_rows: bool = False
    """The numbers of a key are neighbours in memory, so that a new one is written in one piece."""
    pads_right: bool = False
    """Prompts are computed with their padding behind them, so that attention needs no mask."""
    read_every: int = 1
    """Steps between two looks of the host at the rows that have ended."""


ON_CPU = Habits()
ON_GPU = Habits(align=64, keys_in_rows=True, pads_right=True, read_every=8)
"""Never measured. Kernels want aligned rows, flash attention takes no mask, and each look at the device is a wait."""


def habits_of(device: torch.device) -> Habits:
    """Return the habits for a device: those of the CPU give the same bytes as one piece without alignment."""
    return ON_CPU if device.type == "cpu" else ON_GPU


class Cache:
    """Keys [L, B, kv, d, T] and values [L, B, kv, T, d] of up to T tokens; column c of row b is position c - pad[b].

    With `by_kernel` a kernel attends, which reads a row's own columns alone: no bias, no alignment.
    """

    def __init__(
        self, keys: Tensor, values: Tensor, pad: Tensor, length: int, align: int = 1, by_kernel: bool = False
    ) -> None:
        self.keys, self.values, self.pad, self.length = keys, values, pad, length
        self.align = 1 if by_kernel else align
        self.rows = keys.shape[1]
        self.has_pad = bool(pad.any())
        self.bias: Tensor | None = None
        self.stops = torch.full_like(pad, length) if by_kernel else None
        """int64 [B], for the kernel: the column after the last one of each row."""
        self._refresh_bias()

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """Drop all rows but `rows` (int64 [n], ascending)."""
        n, used = rows.numel(), self.length
        # Layer by layer: a copy of all layers at once would need the room of half the cache.
        for keys, values in zip(self.keys, self.values, strict=True):
            keys[:n, :, :, :used] = keys[: self.rows, :, :, :used].index_select(0, rows)
            values[:n, :, :used] = values[: self.rows, :, :used].index_select(0, rows)
        self.pad = self.pad.index_select(0, rows)
        self.rows = n
        self.stops = None if self.stops is None else self.stops[:n]  # all rows have the same
        self._refresh_bias()

    def attend(self, layer: int, q: Tensor, bias: Tensor | None, upto: int) -> Tensor:
        """Return attention [B, heads d] of one query a row, q [B, heads, d], over the first `upto` columns.

        bias [B kv, 1, upto] as from `spread_bias`.
        """
        (b, heads, d), kv = q.shape, self.keys.shape[2]
        if self.stops is not None:
            from pipeline.models.kernels.attention import attend

            own = self.keys[layer, :b], self.values[layer, :b]
            return attend(q, *own, self.pad, self.stops, upto).flatten(1)
        # Heads that share keys become query rows, so the cache is read once.
        q = q.reshape(b * kv, heads // kv, d) * (d**-0.5)
        keys = self.keys[layer, :b].view(b * kv, d, -1)[:, :, :upto]
        values = self.values[layer, :b].view(b * kv, -1, d)[:, :upto]
        scores = torch.bmm(q, keys) if bias is None else torch.baddbmm(bias, q, keys)
        return torch.bmm(scores.softmax(-1), values).view(b, -1)

    def spread_bias(self, upto: int) -> Tensor | None:
        """Return what is added to the scores of each key head, [B kv, 1, upto]: of hidden columns, the least number."""
        if self.bias is None:
            return None
        kv = self.keys.shape[2]
        return self.bias[:, None, None, :upto].expand(-1, kv, 1, upto).reshape(-1, 1, upto)

    def open_column(self) -> int:
        """Return the number of columns that the next step attends to, with the column that it writes."""
        at = self.length
        if self.stops is not None:
            self.stops += 1
        if self.align == 1:
            return at + 1
        assert self.bias is not None
        self.bias[:, at] = 0
        return -(-(at + 1) // self.align) * self.align

    def _refresh_bias(self) -> None:
        if self.stops is None and (self.has_pad or self.align > 1):
            columns = torch.arange(self.keys.shape[4], device=self.pad.device)
            hidden = columns[None] < self.pad[:, None]
            if self.align > 1:
                hidden = hidden | (columns >= self.length)
            self.bias = torch.zeros(hidden.shape, dtype=self.keys.dtype, device=self.pad.device)
            self.bias.masked_fill_(hidden, torch.finfo(self.keys.dtype).min)


def _mask(pad: Tensor, width: int) -> Tensor:
    """Return bool [p, 1, T, T], True where a column attends to another, for rows left-padded by pad [p]."""
    real = torch.arange(width, device=pad.device)[None] >= pad[:, None]
    causal = torch.ones(width, width, dtype=torch.bool, device=pad.device).tril()
    # A padding column attends to itself: a row without any allowed column would be NaN.
    eye = torch.eye(width, dtype=torch.bool, device=pad.device)
    return ((causal & real[:, None]) | eye)[:, None]


class Decoder:
    """Prefill and one-token steps of a supported model; `refresh` after each change of the model's weights."""

    def __init__(self, model: Any, habits: Habits | None = None) -> None:
        self.model = model
        self.sizes = Sizes.of(model.config)
        self.habits = habits or habits_of(model.device)
        self.by_kernel = self._attends_by_kernel()
        self._rotations: Tensor | None = None
        with torch.no_grad():
            inner = model.model
            self.embedding = inner.embed_tokens.weight.clone()
            self.norm = inner.norm.weight.clone()
            self.head = self.embedding if self._is_tied() else model.lm_head.weight.clone()
            self.layers = [self._read(layer).copied() for layer in inner.layers]

    @classmethod
    def of(cls, model: Any) -> Decoder | None:
        """Return a decoder of `model`; None if its architecture has something that is not computed here."""
        return cls(model) if unsupported(model.config) is None else None

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the model's weights over the last ones: an update under way does not reach a running decode.

        The copies keep their addresses. What is fused or reordered is made block by block.
        """
        inner = self.model.model
        self.embedding.copy_(inner.embed_tokens.weight)
        self.norm.copy_(inner.norm.weight)
        if self.head is not self.embedding:
            self.head.copy_(self.model.lm_head.weight)
        for held, layer in zip(self.layers, inner.layers, strict=True):
            held.take(self._read(layer))

    def _attends_by_kernel(self) -> bool:
        """True if the kernel is wanted on the model's device, and was proved there for heads like these."""
        device, dtype, s = self.model.device, self.model.dtype, self.sizes
        if not kernels.wanted(device):
            return False
        from pipeline.models.kernels.attention import is_proved

        return is_proved(device, dtype, s.heads, s.kv_heads, s.head_dim)

    def _is_tied(self) -> bool:
        head, embedding = self.model.lm_head.weight, self.model.model.embed_tokens.weight
        return head is embedding or head.data_ptr() == embedding.data_ptr()

    def _read(self, layer: Any) -> _Layer:
        """Return the block's weights: those of the model itself where nothing is fused or reordered."""
        a, m = layer.self_attn, layer.mlp
        return _Layer(
            layer.input_layernorm.weight,
            *self.sizes.fused_qkv(a),
            a.o_proj.weight,
            a.o_proj.bias,
            layer.post_attention_layernorm.weight,
            torch.cat([m.gate_proj.weight, m.up_proj.weight]),
            m.down_proj.weight,
            *self.sizes.head_norms(a),
        )

    @torch.inference_mode()
    def prefill(self, ids: Tensor, pad: Tensor, repeat: Tensor, max_new_tokens: int) -> tuple[Tensor, Cache]:
        """Return logits [P, V] after the prompts, and a cache that holds prompt p `repeat[p]` times, in order.

        ids: [P, T] left-padded; pad: [P] number of padding columns of each. Each prompt is computed once, and at most
        `habits.prefill_tokens` tokens at a time.
        """
        prompts, width = ids.shape
        align = self.habits.align
        total = -(-(width + max_new_tokens) // align) * align
        copies = repeat.tolist()
        big = (self.sizes.layers, sum(copies), self.sizes.kv_heads)
        # Keys are transposed, so that a step's scores are a product without a copy; by their strides alone where the
        # numbers of a key are to be neighbours. Columns that attention reads before they are written must be finite.
        make = self.embedding.new_empty if align == 1 else self.embedding.new_zeros
        in_rows, values = self.habits.keys_in_rows, make(*big, total, self.sizes.head_dim)
        keys = make(*big, total, self.sizes.head_dim).mT if in_rows else make(*big, self.sizes.head_dim, total)
        masked = not self.habits.pads_right and bool(pad.any())
        # Pieces of equal size: oneDNN rounds the product of a single row in another way than that of several.
        pieces = -(-prompts // max(1, self.habits.prefill_tokens // width))
        cuts = [prompts * i // pieces for i in range(pieces + 1)]
        last, first = [], 0
        for begin, end in itertools.pairwise(cuts):
            local = torch.arange(end - begin, device=ids.device)
            own = torch.repeat_interleave(local, repeat[begin:end], output_size=sum(copies[begin:end]))
            into = slice(first, first + len(own))
            mask = _mask(pad[begin:end], width) if masked else None
            part = (keys[:, into], values[:, into])
            last.append(self._prefill_piece(ids[begin:end], pad[begin:end], mask, own, part))
            first += len(own)
        rows = torch.repeat_interleave(torch.arange(prompts, device=ids.device), repeat, output_size=first)
        logits = self._logits(torch.cat(last)).index_select(0, rows)
        return logits, Cache(keys, values, pad.index_select(0, rows), width, align, self.by_kernel)

    def _prefill_piece(
        self, ids: Tensor, pad: Tensor, mask: Tensor | None, rows: Tensor, into: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return the last hidden states [p, H] of some prompts, and write them into their part of the cache.

        ids: [p, T] left-padded by pad [p]; mask: as from `_mask`; into: keys and values as in `Cache`, where row i is
        that of prompt rows[i].
        """
        prompts, width = ids.shape
        columns = torch.arange(width, device=ids.device)
        # Column c of a row holds position c - pad; padding takes any position, since it is never attended to.
        positions = (columns[None] - pad[:, None]).clamp_(min=0)
        if self.habits.pads_right:
            ids = ids.gather(1, (columns[None] + pad[:, None]).clamp_(max=width - 1))
            rotation = self._rotation(width)[:width].view(1, width, 1, -1)
        else:
            rotation = self._rotation(width)[positions].unsqueeze(2)  # [p, T, 1, d/2]
        x = self.embedding.index_select(0, ids.reshape(-1))
        for i, layer in enumerate(self.layers):
            q, k, v = self._project(layer, x, prompts, width, rotation)
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                attn_mask=mask,
                is_causal=mask is None,
                enable_gqa=self.sizes.heads != self.sizes.kv_heads,
            )
            x = self._finish(layer, x, attended.transpose(1, 2).reshape(prompts * width, -1))
            if self.habits.pads_right:
                at = positions[:, :, None, None].expand_as(k)
                k, v = k.gather(1, at), v.gather(1, at)
            into[0][i, ..., :width] = k.permute(0, 2, 3, 1).index_select(0, rows)
            into[1][i, :, :, :width] = v.transpose(1, 2).index_select(0, rows)
        states: Tensor = x.view(prompts, width, -1)
        if not self.habits.pads_right:
            return states[:, -1]
        return states[torch.arange(prompts, device=ids.device), positions[:, -1]]

    @torch.inference_mode()
    def step(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Return logits [B, V] after one more token in each row of the cache; tokens: int64 [B]."""
        b, d, at = tokens.numel(), self.sizes.head_dim, cache.length
        upto = cache.open_column()
        rotations = self._rotation(at + 1)
        if cache.has_pad:
            rotation = rotations.index_select(0, at - cache.pad).view(b, 1, 1, d // 2)
        else:
            rotation = rotations[at].view(1, 1, 1, d // 2)
        bias = cache.spread_bias(upto)
        x = self.embedding.index_select(0, tokens)
        for i, layer in enumerate(self.layers):
            q, k, v = self._project(layer, x, b, 1, rotation)
            cache.keys[i, :b, :, :, at], cache.values[i, :b, :, at] = k[:, 0], v[:, 0]
            x = self._finish(layer, x, cache.attend(i, q[:, 0], bias, upto))
        cache.length += 1
        return self._logits(x)

    def _project(self, layer: _Layer, x: Tensor, b: int, n: int, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nq, kv, d = self.sizes.heads, self.sizes.kv_heads, self.sizes.head_dim
        fused = product(F.rms_norm(x, (self.sizes.hidden,), layer.norm1, self.sizes.eps), layer.qkv, layer.qkv_bias)
        fused = fused.view(b, n, nq + 2 * kv, d)
        qk, v = fused[:, :, : nq + kv], fused[:, :, nq + kv :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = F.rms_norm(qk[:, :, :nq], (d,), layer.q_norm, self.sizes.eps)
            qk = torch.cat([q, F.rms_norm(qk[:, :, nq:], (d,), layer.k_norm, self.sizes.eps)], 2)
        pairs = torch.view_as_complex(qk.float().reshape(b, n, nq + kv, d // 2, 2))
        qk = torch.view_as_real(pairs * rotation).flatten(3).to(x.dtype)
        return qk[:, :, :nq], qk[:, :, nq:], v

    def _finish(self, layer: _Layer, x: Tensor, attended: Tensor) -> Tensor:
        x = product(attended, layer.out, layer.out_bias).add_(x)
        gate, up = product(F.rms_norm(x, (self.sizes.hidden,), layer.norm2, self.sizes.eps), layer.gate_up).chunk(2, 1)
        return product(F.silu(gate).mul_(up), layer.down).add_(x)

    def _logits(self, x: Tensor) -> Tensor:
        return product(F.rms_norm(x, (self.sizes.hidden,), self.norm, self.sizes.eps), self.head).float()

    def _rotation(self, length: int) -> Tensor:
        """Return complex64 [>= length, d/2], grown by doubling."""
        have = 0 if self._rotations is None else len(self._rotations)
        if self._rotations is None or have < length:
            self._rotations = self.sizes.rotations(max(length, 2 * have, 256), self.embedding.device)
        return self._rotations


def check_parity(decoder: Decoder) -> float:
    """Return the difference of next-token log-probs between `decoder` and its model in nats, on a few tokens.

    In float32 it is the greatest, and 2e-3 is allowed (times the spread of the log-probs if that is below 1: in a model
    just made all differences are small). In 16 bits it is the mean, and a tenth of the spread is allowed: rounding made
    means of up to 0.07 of it in random models of eight layers, where single tokens were off by 0.6 nats.
    Raises: ValueError if more than that differs, because the model computes something else than the family it names.
    """
    ids = probe_ids(decoder.model, 3, 8)
    with evaluating(decoder.model):
        theirs = decoder.model(input_ids=ids, use_cache=False).logits[:, -1].float().log_softmax(-1)
    pad = torch.zeros(3, dtype=torch.int64, device=ids.device)
    _, cache = decoder.prefill(ids[:, :6], pad, torch.ones_like(pad), 2)
    decoder.step(ids[:, 6], cache)
    ours = decoder.step(ids[:, 7], cache).log_softmax(-1)
    gaps, spread, is_half = (ours - theirs).abs(), float(theirs.std()), decoder.model.dtype in HALF
    gap, allowed = (float(gaps.mean()), 0.1 * spread) if is_half else (float(gaps.max()), 2e-3 * min(1.0, spread))
    if not gap <= allowed:  # NaN is refused too
        raise ValueError(f"fast decode differs from the model by {gap:.2g} nats (allowed {allowed:.2g})")
    return gap
