"""A decode path for the Llama family (Llama, Mistral, Qwen2, Qwen3) that reads the weights of a transformers model.

transformers' own forward spends most of a small model's decode step in Python. Here a step is a handful of fused
products over a preallocated key/value cache. `Decoder.of` returns None for a model it does not know, and `check_parity`
proves, on the weights at hand, that both compute the same logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.models.cpu.onednn import product

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})


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
        config = model.config
        self.model = model
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.hidden = config.hidden_size
        self.eps = config.rms_norm_eps
        self.num_layers = config.num_hidden_layers
        self.theta = rope_theta(config)
        self.layers: list[_Layer] = []
        self._rotations: Tensor | None = None
        self.refresh()

    @classmethod
    def of(cls, model: Any) -> Decoder | None:
        """A decoder of `model`, or None where its architecture has something that is not computed here."""
        return cls(model) if unsupported(model.config) is None else None

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the model's weights again. They are copied: an update under way does not reach a running decode."""
        inner, d = self.model.model, self.head_dim
        # transformers rotates the pairs (i, i + d/2); adjacent pairs are one complex product. Permuting q and k alike
        # leaves every attention score as it was.
        order = torch.arange(d).view(2, d // 2).t().reshape(-1)
        self.embedding = inner.embed_tokens.weight.detach().clone()
        self.norm = inner.norm.weight.detach().clone()
        head = self.model.lm_head.weight
        tied = head is inner.embed_tokens.weight or head.data_ptr() == inner.embed_tokens.weight.data_ptr()
        self.head = self.embedding if tied else head.detach().clone()
        self.layers = [self._read(layer, order.to(head.device)) for layer in inner.layers]

    def _read(self, layer: Any, order: Tensor) -> _Layer:
        a, m, d = layer.self_attn, layer.mlp, self.head_dim

        def permuted(w: Tensor) -> Tensor:
            return w.view(-1, d, *w.shape[1:]).index_select(1, order).reshape(w.shape)

        weight = torch.cat([permuted(a.q_proj.weight), permuted(a.k_proj.weight), a.v_proj.weight])
        bias = None
        if a.q_proj.bias is not None:
            bias = torch.cat([permuted(a.q_proj.bias), permuted(a.k_proj.bias), a.v_proj.bias])
        return _Layer(
            norm1=layer.input_layernorm.weight.detach().clone(),
            qkv=weight,
            qkv_bias=bias,
            out=a.o_proj.weight.detach().clone(),
            out_bias=None if a.o_proj.bias is None else a.o_proj.bias.detach().clone(),
            norm2=layer.post_attention_layernorm.weight.detach().clone(),
            gate_up=torch.cat([m.gate_proj.weight, m.up_proj.weight]),
            down=m.down_proj.weight.detach().clone(),
            q_norm=a.q_norm.weight.detach().index_select(0, order) if hasattr(a, "q_norm") else None,
            k_norm=a.k_norm.weight.detach().index_select(0, order) if hasattr(a, "k_norm") else None,
        )

    @torch.inference_mode()
    def prefill(self, ids: Tensor, pad: Tensor, repeat: Tensor, max_new_tokens: int) -> tuple[Tensor, Cache]:
        """Logits [P, V] after the prompts, and a cache in which prompt p stands `repeat[p]` times, in order.

        ids: [P, T] left-padded; pad: [P] number of padding columns of each. Each prompt is computed once.
        """
        prompts, width = ids.shape
        total = width + max_new_tokens
        shape = (self.num_layers, prompts, self.kv_heads)
        keys = self.embedding.new_zeros(*shape, self.head_dim, width)
        values = self.embedding.new_zeros(*shape, width, self.head_dim)
        positions = (torch.arange(width, device=ids.device)[None] - pad[:, None]).clamp_(min=0)
        rotation = self._rotation(width)[positions].unsqueeze(2)  # [P, T, 1, d/2]
        mask = None
        if bool(pad.any()):
            real = torch.arange(width, device=ids.device)[None] >= pad[:, None]
            causal = torch.ones(width, width, dtype=torch.bool, device=ids.device).tril()
            # a padding column attends to itself: a row without any allowed column would be nan
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
                enable_gqa=self.heads != self.kv_heads,
            )
            x = self._finish(layer, x, attended.transpose(1, 2).reshape(prompts * width, -1))
        logits = self._logits(x.view(prompts, width, -1)[:, -1])
        rows = torch.repeat_interleave(torch.arange(prompts, device=ids.device), repeat)
        big = (self.num_layers, rows.numel(), self.kv_heads)
        all_keys = keys.new_empty(*big, self.head_dim, total)
        all_values = values.new_empty(*big, total, self.head_dim)
        all_keys[..., :width] = keys.index_select(1, rows)
        all_values[:, :, :, :width] = values.index_select(1, rows)
        return logits.index_select(0, rows), Cache(all_keys, all_values, pad.index_select(0, rows), width)

    @torch.inference_mode()
    def step(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Logits [B, V] after one more token in each row of the cache; tokens: int64 [B]."""
        b, d, kv, at = tokens.numel(), self.head_dim, self.kv_heads, cache.length
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
            # heads that share keys become query rows, so the cache is read once
            q = q.reshape(b * kv, self.heads // kv, d) * (d**-0.5)
            keys = cache.keys[i, :b].view(b * kv, d, -1)[:, :, : at + 1]
            values = cache.values[i, :b].view(b * kv, -1, d)[:, : at + 1]
            scores = torch.bmm(q, keys) if bias is None else torch.baddbmm(bias, q, keys)
            x = self._finish(layer, x, torch.bmm(scores.softmax(-1), values).view(b, -1))
        cache.length += 1
        return self._logits(x)

    def _project(self, layer: _Layer, x: Tensor, b: int, n: int, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nq, kv, d = self.heads, self.kv_heads, self.head_dim
        fused = product(F.rms_norm(x, (self.hidden,), layer.norm1, self.eps), layer.qkv, layer.qkv_bias)
        fused = fused.view(b, n, nq + 2 * kv, d)
        qk, v = fused[:, :, : nq + kv], fused[:, :, nq + kv :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = F.rms_norm(qk[:, :, :nq], (d,), layer.q_norm, self.eps)
            qk = torch.cat([q, F.rms_norm(qk[:, :, nq:], (d,), layer.k_norm, self.eps)], 2)
        pairs = torch.view_as_complex(qk.float().reshape(b, n, nq + kv, d // 2, 2))
        qk = torch.view_as_real(pairs * rotation).flatten(3).to(x.dtype)
        return qk[:, :, :nq], qk[:, :, nq:], v

    def _finish(self, layer: _Layer, x: Tensor, attended: Tensor) -> Tensor:
        x = product(attended, layer.out, layer.out_bias).add_(x)
        gate, up = product(F.rms_norm(x, (self.hidden,), layer.norm2, self.eps), layer.gate_up).chunk(2, 1)
        return product(F.silu(gate).mul_(up), layer.down).add_(x)

    def _logits(self, x: Tensor) -> Tensor:
        return product(F.rms_norm(x, (self.hidden,), self.norm, self.eps), self.head).float()

    def _rotation(self, length: int) -> Tensor:
        """exp(i * position * frequency) as complex64 [>= length, d/2], grown by doubling."""
        have = 0 if self._rotations is None else self._rotations.shape[0]
        if self._rotations is None or have < length:
            device, n = self.embedding.device, max(length, 2 * have, 256)
            exponent = torch.arange(0, self.head_dim, 2, dtype=torch.int64, device=device).float() / self.head_dim
            angle = torch.arange(n, device=device).float()[:, None] * (1.0 / (self.theta**exponent))[None]
            self._rotations = torch.polar(torch.ones_like(angle), angle)
        return self._rotations


def unsupported(config: Any) -> str | None:
    """What a model of this configuration has that is not computed here; None if all of it is."""
    if config.model_type not in FAMILIES:
        return f"model type {config.model_type!r} (known: {', '.join(sorted(FAMILIES))})"
    if (activation := getattr(config, "hidden_act", "silu")) != "silu":
        return f"hidden_act {activation!r}"
    if getattr(config, "mlp_bias", False):
        return "mlp_bias"
    if rope_theta(config) is None:
        return f"scaled rotary positions ({getattr(config, 'rope_parameters', None)})"
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True):
        return f"sliding_window {window}"
    return None


def rope_theta(config: Any) -> Any:
    """The base of the rotary frequencies, or None where they are scaled in a way that is not computed here."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        return None
    return rope.get("rope_theta", getattr(config, "rope_theta", None))


@torch.no_grad()
def check_parity(decoder: Decoder, tolerance: float = 2e-3) -> float:
    """Greatest difference of next-token log-probs between `decoder` and its model, on a few tokens of the vocabulary.

    Raises: ValueError past `tolerance` (nats; times the spread of the log-probs where that is below 1, for in a model
    just made all differences are small): this model computes something else than the family it names.
    """
    vocab = decoder.embedding.shape[0]
    ids = (torch.arange(24) * 7919 % vocab).view(3, 8).to(decoder.embedding.device)
    was_training = decoder.model.training
    decoder.model.eval()
    theirs = decoder.model(input_ids=ids, use_cache=False).logits[:, -1].float().log_softmax(-1)
    decoder.model.train(was_training)
    pad = torch.zeros(3, dtype=torch.int64, device=ids.device)
    _, cache = decoder.prefill(ids[:, :6], pad, torch.ones_like(pad), 2)
    decoder.step(ids[:, 6], cache)
    ours = decoder.step(ids[:, 7], cache).log_softmax(-1)
    worst = float((ours - theirs).abs().max())
    allowed = tolerance * min(1.0, float(theirs.std()))
    if not worst <= allowed:
        raise ValueError(f"fast decode differs from the model by {worst:.2g} nats (allowed {allowed:.2g})")
    return worst
