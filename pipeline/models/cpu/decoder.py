"""A decode path for the Llama family (Llama, Mistral, Qwen2, Qwen3) that reads the weights of a transformers model.

transformers' own forward spends most of a small model's decode step in Python. Here a step is a handful of fused
products over a preallocated key/value cache. It works on any device and pays most on the CPU. `check_parity` proves, on
the weights at hand, that both compute the same logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

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


class Cache:
    """Keys [L, B, kv, d, T] and values [L, B, kv, T, d] of up to T tokens; column c of row b is position c - pad[b]."""

    def __init__(self, keys: Tensor, values: Tensor, pad: Tensor, length: int) -> None:
        self.keys, self.values, self.pad, self.length = keys, values, pad, length
        self.rows = keys.shape[1]
        self.has_pad = bool(pad.any())
        self.bias: Tensor | None = None
        self._refresh_bias()

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """Drop all rows but `rows` (int64 [n], ascending)."""
        n, used = rows.numel(), self.length
        self.keys[:, :n, :, :, :used] = self.keys[:, : self.rows, :, :, :used].index_select(1, rows)
        self.values[:, :n, :, :used] = self.values[:, : self.rows, :, :used].index_select(1, rows)
        self.pad = self.pad.index_select(0, rows)
        self.rows = n
        self._refresh_bias()

    def _refresh_bias(self) -> None:
        if self.has_pad:
            columns = torch.arange(self.keys.shape[4], device=self.pad.device)
            hidden = columns[None] < self.pad[:, None]
            self.bias = torch.zeros(hidden.shape, dtype=self.keys.dtype, device=self.pad.device)
            self.bias.masked_fill_(hidden, torch.finfo(self.keys.dtype).min)


class Decoder:
    """Prefill and one-token steps of a supported model; `refresh` after each change of the model's weights."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.sizes = Sizes.of(model.config)
        self._rotations: Tensor | None = None
        self.refresh()

    @classmethod
    def of(cls, model: Any) -> Decoder | None:
        """Return a decoder of `model`; None if its architecture has something that is not computed here."""
        return cls(model) if unsupported(model.config) is None else None

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the model's weights: an update under way does not reach a running decode."""
        inner = self.model.model
        self.embedding = inner.embed_tokens.weight.clone()
        self.norm = inner.norm.weight.clone()
        head = self.model.lm_head.weight
        tied = head is inner.embed_tokens.weight or head.data_ptr() == inner.embed_tokens.weight.data_ptr()
        self.head = self.embedding if tied else head.clone()
        self.layers = [self._read(layer) for layer in inner.layers]

    def _read(self, layer: Any) -> _Layer:
        a, m = layer.self_attn, layer.mlp
        return _Layer(
            layer.input_layernorm.weight.clone(),
            *self.sizes.fused_qkv(a),
            a.o_proj.weight.clone(),
            None if a.o_proj.bias is None else a.o_proj.bias.clone(),
            layer.post_attention_layernorm.weight.clone(),
            torch.cat([m.gate_proj.weight, m.up_proj.weight]),
            m.down_proj.weight.clone(),
            *self.sizes.head_norms(a),
        )

    @torch.inference_mode()
    def prefill(self, ids: Tensor, pad: Tensor, repeat: Tensor, max_new_tokens: int) -> tuple[Tensor, Cache]:
        """Return logits [P, V] after the prompts, and a cache that holds prompt p `repeat[p]` times, in order.

        ids: [P, T] left-padded; pad: [P] number of padding columns of each. Each prompt is computed once.
        """
        prompts, width = ids.shape
        total = width + max_new_tokens
        shape = (self.sizes.layers, prompts, self.sizes.kv_heads)
        # Keys are stored transposed, so that a step's scores are a product without a copy.
        keys = self.embedding.new_zeros(*shape, self.sizes.head_dim, width)
        values = self.embedding.new_zeros(*shape, width, self.sizes.head_dim)
        positions = (torch.arange(width, device=ids.device)[None] - pad[:, None]).clamp_(min=0)
        rotation = self._rotation(width)[positions].unsqueeze(2)  # [P, T, 1, d/2]
        mask = None
        if bool(pad.any()):
            real = torch.arange(width, device=ids.device)[None] >= pad[:, None]
            causal = torch.ones(width, width, dtype=torch.bool, device=ids.device).tril()
            # A padding column attends to itself: a row without any allowed column would be NaN.
            eye = torch.eye(width, dtype=torch.bool, device=ids.device)
            mask = ((causal & real[:, None]) | eye)[:, None]
        x = self.embedding.index_select(0, ids.reshape(-1))
        for i, layer in enumerate(self.layers):
            q, k, v = self._project(layer, x, prompts, width, rotation)
            keys[i], values[i] = k.permute(0, 2, 3, 1), v.transpose(1, 2)
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                attn_mask=mask,
                is_causal=mask is None,
                enable_gqa=self.sizes.heads != self.sizes.kv_heads,
            )
            x = self._finish(layer, x, attended.transpose(1, 2).reshape(prompts * width, -1))
        logits = self._logits(x.view(prompts, width, -1)[:, -1])
        rows = torch.repeat_interleave(torch.arange(prompts, device=ids.device), repeat)
        big = (self.sizes.layers, rows.numel(), self.sizes.kv_heads)
        all_keys = keys.new_empty(*big, self.sizes.head_dim, total)
        all_values = values.new_empty(*big, total, self.sizes.head_dim)
        all_keys[..., :width] = keys.index_select(1, rows)
        all_values[:, :, :, :width] = values.index_select(1, rows)
        return logits.index_select(0, rows), Cache(all_keys, all_values, pad.index_select(0, rows), width)

    @torch.inference_mode()
    def step(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Return logits [B, V] after one more token in each row of the cache; tokens: int64 [B]."""
        b, d, kv, at = tokens.numel(), self.sizes.head_dim, self.sizes.kv_heads, cache.length
        rotations = self._rotation(at + 1)
        if cache.has_pad:
            rotation = rotations.index_select(0, at - cache.pad).view(b, 1, 1, d // 2)
        else:
            rotation = rotations[at].view(1, 1, 1, d // 2)
        bias = None
        if cache.bias is not None:
            bias = cache.bias[:, None, None, : at + 1].expand(b, kv, 1, at + 1).reshape(b * kv, 1, at + 1)
        x = self.embedding.index_select(0, tokens)
        for i, layer in enumerate(self.layers):
            q, k, v = self._project(layer, x, b, 1, rotation)
            cache.keys[i, :b, :, :, at], cache.values[i, :b, :, at] = k[:, 0], v[:, 0]
            # Heads that share keys become query rows, so the cache is read once.
            q = q.reshape(b * kv, self.sizes.heads // kv, d) * (d**-0.5)
            keys = cache.keys[i, :b].view(b * kv, d, -1)[:, :, : at + 1]
            values = cache.values[i, :b].view(b * kv, -1, d)[:, : at + 1]
            scores = torch.bmm(q, keys) if bias is None else torch.baddbmm(bias, q, keys)
            x = self._finish(layer, x, torch.bmm(scores.softmax(-1), values).view(b, -1))
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
