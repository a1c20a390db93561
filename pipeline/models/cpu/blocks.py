"""Hidden states of the Llama family for training on the CPU, each block with a backward written by hand.

Eager autograd over transformers' blocks reads and writes every activation a dozen times for norms, rotations and gates.
Here a block is its matrix products, one attention and as few passes as they need; what one can fold into a weight (the
norms' scales, the order of rotated pairs) is folded there, where it is small. `Body.of` returns None for a model or
device it does not know; `pipeline.models.forward` proves on the weights at hand that both compute the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.models.cpu.decoder import rope_theta, unsupported
from pipeline.models.cpu.onednn import HAS_ONEDNN, FastLinear, outer, product

LIKE = 0.8
"""Rows shorter than this share of the longest one beside them begin a segment of their own"""
LEAST_SEGMENT = 512
"""where what stands before them has this many tokens: a call of attention costs what some padding does."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring rows of like length, whose attention is computed together."""

    begin: int
    rows: int
    longest: int
    at: Tensor | None
    """int64 [tokens]: each token's place among rows * longest; None where all rows are as long as the longest."""

    @property
    def end(self) -> int:
        """The first token behind it."""
        return self.begin + (self.rows * self.longest if self.at is None else len(self.at))


@dataclass(frozen=True, slots=True)
class Shape:
    """What a block needs to know besides its weights."""

    rows: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    segments: tuple[Segment, ...] | None = None
    """Rows without padding, one after the other (then `rows` is 1): which tokens see each other. None: each row."""


class Body:
    """The blocks of one model; weights are read at each call, so gradients reach the model's own parameters."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.hidden: int = config.hidden_size
        self.eps: float = config.rms_norm_eps
        self.theta: float = rope_theta(config)
        half = self.head_dim // 2
        self.order = torch.arange(self.head_dim).view(2, half).t().reshape(-1)
        self._rotation = torch.empty(0)

    @classmethod
    def of(cls, model: Any) -> Body | None:
        """The body of `model`, or None where it has something that is not computed here."""
        return cls(model) if HAS_ONEDNN and unsupported(model.config) is None else None

    def hidden_states(self, model: Any, ids: Tensor) -> Tensor:
        """[B, T, H] after the last norm, with gradient to the model's parameters; ids: int64 [B, T], right-padded."""
        inner = model.model
        rows, length = ids.shape
        shape = Shape(rows, length, self.heads, self.kv_heads, self.head_dim, self.eps)
        rotation = self._rotations(length)
        x = inner.embed_tokens(ids).view(rows * length, -1)
        for layer in inner.layers:
            x = _Block.apply(x, rotation, shape, *self._weights(layer))  # type: ignore[no-untyped-call]
        return F.rms_norm(x, (self.hidden,), inner.norm.weight, self.eps).view(rows, length, -1)

    def packed_states(self, model: Any, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """[N, H] after the last norm, of rows without padding: ids int64 [N], the rows one after the other.

        Products are over real tokens alone; a token sees its own row only. Fastest where rows are sorted by length.
        """
        inner, total = model.model, len(ids)
        segments = segments_of(lengths)
        shape = Shape(1, total, self.heads, self.kv_heads, self.head_dim, self.eps, segments)
        positions = torch.cat([torch.arange(n) for n in lengths])
        rotation = self._rotations(max(lengths)).index_select(0, positions)
        x = inner.embed_tokens(ids)
        for layer in inner.layers:
            x = _Block.apply(x, rotation, shape, *self._weights(layer))  # type: ignore[no-untyped-call]
        return F.rms_norm(x, (self.hidden,), inner.norm.weight, self.eps)

    def _weights(self, layer: Any) -> tuple[Tensor | None, ...]:
        """Fused weights of a block, the norms' scales in the products after them and rotated pairs side by side."""
        a, m = layer.self_attn, layer.mlp
        weight = torch.cat([self._ordered(a.q_proj.weight), self._ordered(a.k_proj.weight), a.v_proj.weight])
        bias = None
        if a.q_proj.bias is not None:
            bias = torch.cat([self._ordered(a.q_proj.bias), self._ordered(a.k_proj.bias), a.v_proj.bias])
        scales: list[Tensor | None] = [None, None]
        if hasattr(a, "q_norm"):
            scales = [self._ordered(a.q_norm.weight), self._ordered(a.k_norm.weight)]
        return (
            weight * layer.input_layernorm.weight,
            bias,
            *scales,
            a.o_proj.weight,
            a.o_proj.bias,
            torch.cat([m.gate_proj.weight, m.up_proj.weight]) * layer.post_attention_layernorm.weight,
            m.down_proj.weight,
        )

    def _ordered(self, weight: Tensor) -> Tensor:
        d = self.head_dim
        return weight.view(-1, d, *weight.shape[1:]).index_select(1, self.order).reshape(weight.shape)

    def _rotations(self, length: int) -> Tensor:
        """exp(i * position * frequency) as complex64 [T, nq + nkv, d/2]."""
        if len(self._rotation) < length:
            exponent = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim
            angle = torch.arange(max(length, 256)).float()[:, None] * (1.0 / (self.theta**exponent))[None]
            turn = torch.polar(torch.ones_like(angle), angle)
            self._rotation = turn[:, None].expand(-1, self.heads + self.kv_heads, -1).contiguous()
        return self._rotation[:length]


def segments_of(lengths: Sequence[int]) -> tuple[Segment, ...]:
    """Rows cut into segments: one ends where the next row would be padded much, or more than it and would be much."""
    cuts = [0]
    tokens = 0
    for i in range(1, len(lengths)):
        tokens += lengths[i - 1]
        longest, shortest = max(lengths[cuts[-1] : i + 1]), min(lengths[cuts[-1] : i + 1])
        if tokens >= LEAST_SEGMENT and shortest < LIKE * longest:
            cuts.append(i)
            tokens = 0
    found, begin = [], 0
    for first, last in zip(cuts, [*cuts[1:], len(lengths)], strict=True):
        own = lengths[first:last]
        longest = max(own)
        even = min(own) == longest
        at = None if even else torch.cat([torch.arange(n) + row * longest for row, n in enumerate(own)])
        found.append(Segment(begin, len(own), longest, at))
        begin += sum(own)
    return tuple(found)


def is_plain(model: Any) -> bool:
    """The weights are on the CPU in float32, and nothing hangs on the modules: no adapters, hooks or dropout."""
    if model.dtype != torch.float32 or model.device.type != "cpu" or getattr(model, "is_gradient_checkpointing", False):
        return False
    if model.training and getattr(model.config, "attention_dropout", 0.0):
        return False
    for module in model.modules():
        if hasattr(module, "lora_A"):
            return False
        if isinstance(module, nn.Linear) and type(module) not in (nn.Linear, FastLinear):
            return False
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return False
    return True


class _Block(torch.autograd.Function):
    """One block: x [N, H] -> x [N, H], N = rows * length."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        rotation: Tensor,
        shape: Shape,
        qkv_weight: Tensor,
        qkv_bias: Tensor | None,
        q_scale: Tensor | None,
        k_scale: Tensor | None,
        out_weight: Tensor,
        out_bias: Tensor | None,
        gate_up_weight: Tensor,
        down_weight: Tensor,
    ) -> Tensor:
        s = ctx.shape = shape
        h1, r1 = _normed(x, s.eps)
        fused = product(h1, qkv_weight, qkv_bias).view(s.rows, s.length, -1, s.head_dim)
        qk, v = fused[:, :, : s.heads + s.kv_heads], fused[:, :, s.heads + s.kv_heads :]
        head_norm: tuple[Tensor, ...] = ()
        if q_scale is not None and k_scale is not None:
            unit, r = _normed(qk, s.eps)
            scale = torch.cat([q_scale.expand(s.heads, -1), k_scale.expand(s.kv_heads, -1)])
            head_norm, qk = (unit, r, scale), unit * scale
        qk = _rotated(qk, rotation)
        attended = _attention(ctx, qk[:, :, : s.heads], qk[:, :, s.heads :], v)
        x2 = product(attended, out_weight, out_bias).add_(x)
        h2, r2 = _normed(x2, s.eps)
        gate_up = product(h2, gate_up_weight)
        gate, up = gate_up.chunk(2, 1)
        activated = F.silu(gate).mul_(up)
        ctx.save_for_backward(
            rotation, h1, r1, attended, h2, r2, gate_up, activated, qkv_weight, out_weight, gate_up_weight, down_weight,
            *head_norm,
        )  # fmt: skip
        return product(activated, down_weight).add_(x2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (rotation, h1, r1, attended, h2, r2, gate_up, activated, qkv_weight, out_weight, gate_up_weight, down_weight,
         *head_norm) = ctx.saved_tensors  # fmt: skip
        needs = ctx.needs_input_grad
        gate, up = gate_up.chunk(2, 1)
        to_activated = product(grad, down_weight.t())
        to_down = outer(grad, activated)
        to_gate_up = torch.empty_like(gate_up)
        to_gate, to_up = to_gate_up.chunk(2, 1)
        torch.mul(to_activated, F.silu(gate), out=to_up)
        to_gate.copy_(torch.ops.aten.silu_backward(to_activated.mul_(up), gate))
        to_gate_up_weight = outer(to_gate_up, h2)
        to_x2 = _norm_backward(product(to_gate_up, gate_up_weight.t()), h2, r2).add_(grad)
        to_attended = product(to_x2, out_weight.t())
        to_out = outer(to_x2, attended)
        to_out_bias = to_x2.sum(0) if needs[8] else None
        to_fused, to_scales = _attention_backward(ctx, to_attended, rotation, head_norm)
        to_qkv = outer(to_fused, h1)
        to_qkv_bias = to_fused.sum(0) if needs[4] else None
        to_x = _norm_backward(product(to_fused, qkv_weight.t()), h1, r1).add_(to_x2)
        return (
            to_x, None, None, to_qkv, to_qkv_bias, *to_scales, to_out, to_out_bias, to_gate_up_weight, to_down,
        )  # fmt: skip


def _attention(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[N, nq d] of q, k, v [B, T, heads, d]; what its backward needs is kept in `ctx`."""
    s: Shape = ctx.shape
    learns = any(ctx.needs_input_grad)
    given = [(q, k, v)]
    if s.segments is not None:
        given = [(_padded(q, g), _padded(k, g), _padded(v, g)) for g in s.segments]
    inputs: list[Tensor] = []
    attended: list[Tensor] = []
    for some in given:
        with torch.set_grad_enabled(learns):
            q, k, v = (t.transpose(1, 2).requires_grad_(learns) for t in some)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=s.heads != s.kv_heads)
        inputs += (q, k, v)
        attended.append(out)
    ctx.attention_inputs, ctx.attended = inputs, attended
    each = [out.detach().transpose(1, 2) for out in attended]
    if s.segments is None:
        return each[0].reshape(s.rows * s.length, -1)
    return torch.cat([_flat(x, g).flatten(1) for x, g in zip(each, s.segments, strict=True)])


def _padded(x: Tensor, segment: Segment) -> Tensor:
    """The segment's part of x [1, N, heads, d] as [rows, longest, heads, d], 0 behind the shorter rows."""
    own = x[0, segment.begin : segment.end]
    if segment.at is not None:
        room = own.new_zeros(segment.rows * segment.longest, *own.shape[1:])
        own = room.index_copy_(0, segment.at, own)
    return own.view(segment.rows, segment.longest, *own.shape[1:])


def _flat(x: Tensor, segment: Segment) -> Tensor:
    """[tokens, heads, d] of a segment's x [rows, longest, heads, d]."""
    flat = x.reshape(segment.rows * segment.longest, *x.shape[2:])
    return flat if segment.at is None else flat.index_select(0, segment.at)


def _attention_backward(
    ctx: Any, grad: Tensor, rotation: Tensor, head_norm: list[Tensor]
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
    """Gradients of the fused projection [N, (nq + 2 nkv) d] and of the scales of queries' and keys' norms."""
    s: Shape = ctx.shape
    grad = grad.view(s.rows, s.length, s.heads, s.head_dim)
    grads = [grad] if s.segments is None else [_padded(grad, g) for g in s.segments]
    found = torch.autograd.grad(ctx.attended, ctx.attention_inputs, [g.transpose(1, 2) for g in grads])
    ctx.attended = ctx.attention_inputs = None
    parts = [torch.cat([t.transpose(1, 2) for t in found[i : i + 3]], 2) for i in range(0, len(found), 3)]
    if s.segments is None:
        (fused,) = parts
    else:
        fused = torch.cat([_flat(x, g) for x, g in zip(parts, s.segments, strict=True)])[None]
    to_qk = fused[:, :, : s.heads + s.kv_heads]
    pairs = _pairs(to_qk)
    pairs.mul_(rotation.conj())
    scales: tuple[Tensor | None, Tensor | None] = (None, None)
    if head_norm:
        unit, r, scale = head_norm
        each = (to_qk * unit).sum((0, 1))
        scales = each[: s.heads].sum(0), each[s.heads :].sum(0)
        to_qk.copy_(_norm_backward(to_qk * scale, unit, r))
    return fused.view(s.rows * s.length, -1), scales


def _normed(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x / rms(x) over the last dimension, and 1 / rms(x) [..., 1]."""
    r = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return x * r, r


def _norm_backward(grad: Tensor, unit: Tensor, r: Tensor) -> Tensor:
    """Gradient of x where unit = x * r(x): (grad - unit mean(grad unit)) r."""
    mean = (grad * unit).mean(-1, keepdim=True)
    return torch.addcmul(grad, unit, mean, value=-1).mul_(r)


def _rotated(qk: Tensor, rotation: Tensor) -> Tensor:
    """Queries and keys [B, T, nq + nkv, d] turned by their positions, in place where they can be."""
    pairs = _pairs(qk)
    pairs.mul_(rotation)
    return qk


def _pairs(x: Tensor) -> Tensor:
    """Adjacent pairs of the last dimension as complex numbers: a view."""
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
