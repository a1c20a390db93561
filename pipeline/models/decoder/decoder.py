"""A decode path for the Llama family (Llama, Mistral, Qwen2, Qwen3) that reads the weights of a transformers model.

transformers' own forward spends most of a small model's decode step in Python. Here a step is a handful of fused
products over a preallocated key/value cache. It works on any device and pays most on the CPU. `check_parity` proves, on
the weights at hand, that both compute the same logits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.models.adapted_layers import frozen_base
from verizero.pipeline.models.decoder.cache import Cache, Shared, room_of
from verizero.pipeline.models.decoder.weights import Factors, InFourBits, Sizes, factors_of, packed, times, unsupported
from verizero.pipeline.models.kernels import HALF
from verizero.pipeline.models.proof import evaluating, probe_ids
from verizero.pipeline.models.quantized import is_quantized


@dataclass(slots=True)
class _Layer:
    """Weights of one block, with q, k, v and gate, up each fused into one product."""

    norm1: Tensor
    qkv: Tensor | InFourBits  # [(nq + 2 nkv) d, H]
    qkv_bias: Tensor | None
    out: Tensor | InFourBits  # [H, nq d]
    out_bias: Tensor | None
    norm2: Tensor
    gate_up: Tensor | InFourBits  # [2 F, H]
    down: Tensor | InFourBits  # [H, F]
    q_norm: Tensor | None
    k_norm: Tensor | None

    def copied(self, packs: bool) -> _Layer:
        """Return the same weights in tensors of their own, but those in 4 bits; `packs`: those of products packed."""
        own = (getattr(self, name) for name in self.__slots__)
        return _Layer(*(_copied(t, packs) if isinstance(t, Tensor) else t for t in own))

    def take(self, other: _Layer) -> None:
        """Copy the other's weights into these tensors."""
        for name in self.__slots__:
            held, new = getattr(self, name), getattr(other, name)
            if held is not None:
                setattr(self, name, _taken(held, new))


@dataclass(frozen=True, slots=True)
class _Added:
    """The adapters of one block."""

    qkv: Factors | None = None
    out: Factors | None = None
    gate_up: Factors | None = None
    down: Factors | None = None

    def take(self, other: _Added) -> None:
        """Copy the other's adapters into these tensors."""
        for name in self.__slots__:
            for held, new in zip(getattr(self, name) or (), getattr(other, name) or (), strict=True):
                held.copy_(new)


def _copied(weight: Tensor, packs: bool) -> Tensor:
    return packed(weight) if packs and weight.dim() == 2 else weight.clone()


def _taken(held: Tensor, new: Tensor) -> Tensor:
    """Return `new` in the tensor `held`, or packed again: a packed one takes no plain numbers."""
    return packed(new) if held.layout != torch.strided else held.copy_(new)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) over the last dimension, times weight [H]."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    # On the CPU this takes fewer passes than torch's own norm.
    r = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    normed: Tensor = (x * r).mul_(weight)
    return normed


@dataclass(frozen=True, slots=True)
class Habits:
    """Choices of a decode path that depend on the device and change no result but by rounding."""

    prefill_tokens: int = 16384
    """Most tokens of prompts, padding included, that are computed at once; a longer prompt is computed alone."""
    align: int = 1
    """Attention reads, and a cache holds, a multiple of so many columns."""
    on_gpu: bool = False
    """Rows share a prompt wherever two do. Else weights are packed for oneDNN."""


ON_CPU = Habits(align=16)
ON_GPU = Habits(align=64, on_gpu=True)
"""Never measured. Kernels want aligned rows."""


def habits_of(device: torch.device) -> Habits:
    """Return the habits for a device."""
    return ON_CPU if device.type == "cpu" else ON_GPU


class Decoder:
    """Prefill and one-token steps of a supported model; `refresh` after each change of the model's weights."""

    refills = True
    needs_switch = False
    """Each operation gives the same bytes each time, without torch's switch for that."""

    def __init__(self, model: Any, habits: Habits | None = None) -> None:
        self.model = model
        self.sizes = Sizes.of(model.config)
        self.habits = habits or habits_of(model.device)
        self._rotations: Tensor | None = None
        base = frozen_base(model)
        self.is_adapted, self.in_four_bits = bool(base), any(map(is_quantized, base))
        with torch.no_grad():
            inner = model.model
            self.embedding, self.norm = inner.embed_tokens.weight, inner.norm.weight
            if not self.is_adapted:
                self.embedding, self.norm = self.embedding.clone(), self.norm.clone()
            packs = not self.habits.on_gpu
            head = self.embedding if self._is_tied() and not packs else model.lm_head.weight
            # A frozen weight is copied only if it is packed. One in 4 bits is there to save memory: its model has no
            # packed copy of the output layer, the largest weight, either.
            shares = self.in_four_bits or (self.is_adapted and not packs)
            self.head = head if shares or head is self.embedding else _copied(head, packs)
            read = (self._read(layer) for layer in inner.layers)
            self.layers = [layer if shares else layer.copied(packs) for layer in read]
            self.added = [self._adapters(layer) for layer in inner.layers]
            self.added_to_head = factors_of([model.lm_head])

    @classmethod
    def of(cls, model: Any) -> Decoder | None:
        """Return a decoder of `model`; None if its architecture has something that is not computed here."""
        return cls(model) if unsupported(model.config) is None else None

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the model's weights over the last ones: an update under way does not reach a running decode.

        The copies keep their addresses, but for packed ones. What is fused or reordered is made block by block. Of a
        model with adapters these alone change.
        """
        inner = self.model.model
        if self.is_adapted:
            for added, layer in zip(self.added, inner.layers, strict=True):
                added.take(self._adapters(layer))
            _Added(self.added_to_head).take(_Added(factors_of([self.model.lm_head])))
            return
        self.embedding.copy_(inner.embed_tokens.weight)
        self.norm.copy_(inner.norm.weight)
        if self.head is not self.embedding:
            self.head = _taken(self.head, self.model.lm_head.weight)
        for held, layer in zip(self.layers, inner.layers, strict=True):
            held.take(self._read(layer))

    def _is_tied(self) -> bool:
        head, embedding = self.model.lm_head.weight, self.model.model.embed_tokens.weight
        return head is embedding or head.data_ptr() == embedding.data_ptr()

    def _read(self, layer: Any) -> _Layer:
        """Return the block's weights: those of the model itself where nothing is fused or reordered."""
        a, m = layer.self_attn, layer.mlp
        gate_up = m.gate_proj.weight, m.up_proj.weight
        fours = self.in_four_bits
        return _Layer(
            layer.input_layernorm.weight,
            self.sizes.in_four_bits_qkv(a) if fours else self.sizes.fused_qkv(a),
            self.sizes.fused_bias(a),
            InFourBits([a.o_proj.weight]) if fours else a.o_proj.weight,
            a.o_proj.bias,
            layer.post_attention_layernorm.weight,
            InFourBits(gate_up) if fours else torch.cat(gate_up),
            InFourBits([m.down_proj.weight]) if fours else m.down_proj.weight,
            *self.sizes.head_norms(a),
        )

    def _adapters(self, layer: Any) -> _Added:
        """Return copies of the block's adapters."""
        a, m, turn = layer.self_attn, layer.mlp, self.sizes.interleaved
        return _Added(
            factors_of([a.q_proj, a.k_proj, a.v_proj], [turn, turn, None]),
            factors_of([a.o_proj]),
            factors_of([m.gate_proj, m.up_proj]),
            factors_of([m.down_proj]),
        )

    def open(self, lengths: Sequence[int], repeats: Sequence[int], most: int, max_new_tokens: int) -> Cache:
        """Return a cache without rows, for prompts of those lengths with that many rows each, `most` at a time."""
        room = room_of(lengths, repeats, most, max_new_tokens, self.habits.on_gpu)
        keys, values = self._columns(room.rows, room.columns)
        shared = None
        if room.prompts:
            shared = Shared(*self._columns(room.prompts, room.prompt_columns), room.rows)
        self._rotation(max(lengths, default=0) + max_new_tokens)
        return Cache(keys, values, shared, self.habits.align)

    def _columns(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [L, rows, kv, T, d] of zeros, with T at least `columns`."""
        total = -(-columns // self.habits.align) * self.habits.align
        shape = (self.sizes.layers, rows, self.sizes.kv_heads, total, self.sizes.head_dim)
        # Columns that attention reads before they are written must be finite.
        return self.embedding.new_zeros(shape), self.embedding.new_zeros(shape)

    @torch.inference_mode()
    def admit(
        self, cache: Cache, prompts: Sequence[Sequence[int]], repeats: Sequence[int], slots: Sequence[int]
    ) -> Tensor:
        """Compute prompts, put prompt p into the cache for repeats[p] rows, and return logits [rows, V] after them.

        The rows take `slots` in order. Each prompt is computed once, and at most `habits.prefill_tokens` tokens at a
        time.
        """
        num, width, device = len(prompts), max(map(len, prompts)), self.embedding.device
        places = cache.admit([len(p) for p in prompts], repeats, slots)
        table = torch.tensor([[*p, *[0] * (width - len(p))] for p in prompts]).to(device)
        ends = torch.tensor([len(p) - 1 for p in prompts]).to(device)
        rows = torch.tensor([i for i, n in enumerate(repeats) for _ in range(n)]).to(device)
        to = torch.tensor(places or list(slots)).to(device)
        # Pieces of equal size: oneDNN rounds the product of a single row in another way than that of several.
        pieces = -(-num // max(1, self.habits.prefill_tokens // width))
        cuts = [num * i // pieces for i in range(pieces + 1)]
        firsts = list(itertools.accumulate(repeats, initial=0))
        last = []
        for begin, end in itertools.pairwise(cuts):
            if places:
                keep, into = None, to[begin:end]
                held = (cache.shared.keys, cache.shared.values) if cache.shared is not None else ()
            else:
                part = slice(firsts[begin], firsts[end])
                keep, into = rows[part] - begin, to[part]
                held = (cache.keys, cache.values)
            last.append(self._prefill(table[begin:end], ends[begin:end], held, keep, into))
        return self._logits(torch.cat(last)).index_select(0, rows)

    def _prefill(
        self, ids: Tensor, ends: Tensor, held: tuple[Tensor, ...], keep: Tensor | None, into: Tensor
    ) -> Tensor:
        """Return the last hidden states [p, H] of prompts, and write their keys and values to rows `into` of `held`.

        ids: [p, T], padded on the right behind column ends [p]; keep: the prompt of each row, or None: one each.
        """
        prompts, width = ids.shape
        rotation = self._rotation(width)[:width].view(1, width, 1, -1)
        x = self.embedding.index_select(0, ids.reshape(-1))
        for i, (layer, added) in enumerate(zip(self.layers, self.added, strict=True)):
            q, k, v = self._project(layer, added, x, prompts, width, rotation)
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                is_causal=True,
                enable_gqa=self.sizes.heads != self.sizes.kv_heads,
            )
            x = self._finish(layer, added, x, attended.transpose(1, 2).reshape(prompts * width, -1))
            for cache, new in zip(held, (k.transpose(1, 2), v.transpose(1, 2)), strict=True):
                cache[i, :, :, :width].index_copy_(0, into, new if keep is None else new.index_select(0, keep))
        states: Tensor = x.view(prompts, width, -1)
        return states[torch.arange(prompts, device=ids.device), ends]

    @torch.inference_mode()
    def step(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Return logits [B, V] after one more token in each row of the cache; tokens: int64 [B]."""
        b, upto = tokens.numel(), cache.open_column()
        assert self._rotations is not None
        rotation = self._rotations.index_select(0, cache.positions()).view(b, 1, 1, -1)
        bias, places = cache.spread_bias(upto), cache.next_places()
        x = self.embedding.index_select(0, tokens)
        for i, (layer, added) in enumerate(zip(self.layers, self.added, strict=True)):
            q, k, v = self._project(layer, added, x, b, 1, rotation)
            cache.write(i, k[:, 0], v[:, 0], places)
            x = self._finish(layer, added, x, cache.attend(i, q[:, 0], bias, upto))
        cache.close_column()
        return self._logits(x)

    def _project(
        self, layer: _Layer, added: _Added, x: Tensor, b: int, n: int, rotation: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        nq, kv, d = self.sizes.heads, self.sizes.kv_heads, self.sizes.head_dim
        fused = times(_rms_norm(x, layer.norm1, self.sizes.eps), layer.qkv, layer.qkv_bias, added.qkv)
        fused = fused.view(b, n, nq + 2 * kv, d)
        qk, v = fused[:, :, : nq + kv], fused[:, :, nq + kv :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = _rms_norm(qk[:, :, :nq], layer.q_norm, self.sizes.eps)
            qk = torch.cat([q, _rms_norm(qk[:, :, nq:], layer.k_norm, self.sizes.eps)], 2)
        pairs = torch.view_as_complex(qk.float().reshape(b, n, nq + kv, d // 2, 2))
        qk = torch.view_as_real(pairs * rotation).flatten(3).to(x.dtype)
        return qk[:, :, :nq], qk[:, :, nq:], v

    def _finish(self, layer: _Layer, added: _Added, x: Tensor, attended: Tensor) -> Tensor:
        x = times(attended, layer.out, layer.out_bias, added.out).add_(x)
        gate, up = times(_rms_norm(x, layer.norm2, self.sizes.eps), layer.gate_up, None, added.gate_up).chunk(2, 1)
        return times(F.silu(gate).mul_(up), layer.down, None, added.down).add_(x)

    def _logits(self, x: Tensor) -> Tensor:
        return times(_rms_norm(x, self.norm, self.sizes.eps), self.head, None, self.added_to_head).float()

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
    cache = decoder.open([6] * 3, [1] * 3, 3, 2)
    decoder.admit(cache, ids[:, :6].tolist(), [1] * 3, range(3))
    decoder.step(ids[:, 6], cache)
    ours = decoder.step(ids[:, 7], cache).log_softmax(-1)
    gaps, spread, is_half = (ours - theirs).abs(), float(theirs.std()), decoder.model.dtype in HALF
    gap, allowed = (float(gaps.mean()), 0.1 * spread) if is_half else (float(gaps.max()), 2e-3 * min(1.0, spread))
    if not gap <= allowed:  # NaN is refused too
        raise ValueError(f"fast decode differs from the model by {gap:.2g} nats (allowed {allowed:.2g})")
    return gap
