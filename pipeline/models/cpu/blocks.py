"""Hidden states of the Llama family for training on the CPU, each block with a backward written by hand.

Eager autograd over transformers' blocks reads and writes every activation a dozen times for norms, rotations and gates.
Here a block is its matrix products, one attention and as few passes as they need. What can be folded into a weight (the
norms' scales, the order of rotated pairs) is folded there, where it is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.models.cpu.llama import Sizes
from verizero.pipeline.models.cpu.norms import normed
from verizero.pipeline.models.cpu.onednn import outer, product, to_input
from verizero.pipeline.models.runs import Runs
from verizero.pipeline.models.short_attention import attend, is_short


@dataclass(frozen=True, slots=True)
class _Shape:
    """The tokens of one forward: rows * length of them."""

    sizes: Sizes
    rows: int
    length: int
    runs: Runs | None = None
    """The tokens that attend to each other. None: those of a row."""


class _Weights(NamedTuple):
    """A block's weights, with q, k and v as one product."""

    qkv: Tensor
    qkv_bias: Tensor | None
    q_scale: Tensor | None
    k_scale: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gate: Tensor
    up: Tensor
    down: Tensor


class Blocks:
    """The blocks of one model; weights are read in each call, so gradients reach the model's own parameters."""

    def __init__(self, model: Any) -> None:
        self.sizes = Sizes.of(model.config)
        self._rotation = torch.empty(0)

    def hidden_states(self, model: Any, ids: Tensor) -> Tensor:
        """Return [B, T, H] after the last norm, for right-padded ids int64 [B, T]."""
        rows, length = ids.shape
        shape = _Shape(self.sizes, rows, length)
        return self._states(model, ids, self._rotations(length), shape).view(rows, length, -1)

    def packed_states(self, model: Any, ids: Tensor, runs: Runs) -> Tensor:
        """Return [N, H] after the last norm, for the tokens that runs compute: ids int64 [N]."""
        rotation = self._rotations(int(runs.positions.max()) + 1).index_select(0, runs.positions)
        return self._states(model, ids, rotation, _Shape(self.sizes, 1, len(ids), runs))

    def _states(self, model: Any, ids: Tensor, rotation: Tensor, shape: _Shape) -> Tensor:
        inner, hidden = model.model, self.sizes.hidden
        x = inner.embed_tokens(ids).view(-1, hidden)
        for layer in inner.layers:
            x = _Block.apply(x, rotation, shape, *self._weights(layer))  # type: ignore[no-untyped-call]
        return F.rms_norm(x, (hidden,), inner.norm.weight, self.sizes.eps)

    def _weights(self, layer: Any) -> _Weights:
        """Fuse a block's weights, with the norms' scales multiplied into the products that follow them."""
        a, m = layer.self_attn, layer.mlp
        qkv, bias = self.sizes.fused_qkv(a)
        return _Weights(
            qkv * layer.input_layernorm.weight,
            bias,
            *self.sizes.head_norms(a),
            a.o_proj.weight,
            a.o_proj.bias,
            m.gate_proj.weight * layer.post_attention_layernorm.weight,
            m.up_proj.weight * layer.post_attention_layernorm.weight,
            m.down_proj.weight,
        )

    def _rotations(self, length: int) -> Tensor:
        """Return complex64 [T, nq + nkv, d/2]; a copy for each head, because a broadcast product is slower."""
        if len(self._rotation) < length:
            turn = self.sizes.rotations(max(length, 256))
            self._rotation = turn[:, None].expand(-1, self.sizes.heads + self.sizes.kv_heads, -1).contiguous()
        return self._rotation[:length]


class _Block(torch.autograd.Function):
    """One block: x [N, H] -> x [N, H], N = rows * length."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rotation: Tensor, shape: _Shape, *weights: Tensor | None) -> Tensor:
        ctx.shape, s, w = shape, shape.sizes, _Weights(*weights)  # type: ignore[arg-type]
        h1, r1 = normed(x, s.eps)
        fused = product(h1, w.qkv, w.qkv_bias).view(shape.rows, shape.length, -1, s.head_dim)
        qk, v = fused[:, :, : s.heads + s.kv_heads], fused[:, :, s.heads + s.kv_heads :]
        head_norm: tuple[Tensor, ...] = ()
        if w.q_scale is not None and w.k_scale is not None:
            unit, r = normed(qk, s.eps)
            scale = torch.cat([w.q_scale.expand(s.heads, -1), w.k_scale.expand(s.kv_heads, -1)])
            head_norm, qk = (unit, r, scale), unit * scale
        _pairs(qk).mul_(rotation)  # in place: `fused` is read no more
        attended = _attention(ctx, qk[:, :, : s.heads], qk[:, :, s.heads :], v)
        x2 = product(attended, w.out, w.out_bias).add_(x)
        h2, r2 = normed(x2, s.eps)
        # Two products: halves of one would not be contiguous, and each pass over them would take twice as long.
        gate, up = product(h2, w.gate), product(h2, w.up)
        activated = F.silu(gate).mul_(up)
        ctx.save_for_backward(
            rotation, h1, r1, attended, h2, r2, gate, up, activated, w.qkv, w.out, w.gate, w.up, w.down, *head_norm
        )
        return product(activated, w.down).add_(x2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (rotation, h1, r1, attended, h2, r2, gate, up, activated, qkv, out, gate_weight, up_weight, down,
         *head_norm) = ctx.saved_tensors  # fmt: skip
        needs = _Weights(*ctx.needs_input_grad[3:])
        to_activated = to_input(grad, down)
        to_down = outer(grad, activated)
        to_up = F.silu(gate).mul_(to_activated)
        to_gate = to_activated.mul_(up)
        torch.ops.aten.silu_backward.grad_input(to_gate, gate, grad_input=to_gate)  # in place, element by element
        to_gate_weight, to_up_weight = outer(to_gate, h2), outer(to_up, h2)
        to_h2 = to_input(to_gate, gate_weight).add_(to_input(to_up, up_weight))
        to_x2 = _norm_backward(to_h2, h2, r2).add_(grad)
        to_out = outer(to_x2, attended)
        to_out_bias = to_x2.sum(0) if needs.out_bias else None
        to_fused, to_scales = _attention_backward(ctx, to_input(to_x2, out), rotation, head_norm)
        to_qkv = outer(to_fused, h1)
        to_qkv_bias = to_fused.sum(0) if needs.qkv_bias else None
        to_x = _norm_backward(to_input(to_fused, qkv), h1, r1).add_(to_x2)
        to_weights = _Weights(
            to_qkv, to_qkv_bias, *to_scales, to_out, to_out_bias, to_gate_weight, to_up_weight, to_down
        )
        return to_x, None, None, *to_weights


def _attention(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return [N, nq d] for q, k, v [rows, length, heads, d], and keep in `ctx` what the backward needs.

    The backward of attention is autograd's own: inputs and output are kept, with their graph.
    """
    shape: _Shape = ctx.shape
    learns = any(ctx.needs_input_grad)
    with torch.set_grad_enabled(learns):
        ctx.attention_inputs = q, k, v = [t.detach().requires_grad_(learns) for t in (q, k, v)]
        if shape.runs is not None:
            ctx.attended = shape.runs.attend(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))
        elif is_short(q, shape.length):
            ctx.attended = attend(q, k, v)
        else:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            gqa = shape.sizes.heads != shape.sizes.kv_heads
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
            ctx.attended = out.transpose(1, 2)
    attended: Tensor = ctx.attended.detach().reshape(shape.rows * shape.length, -1)
    return attended


def _attention_backward(
    ctx: Any, grad: Tensor, rotation: Tensor, head_norm: list[Tensor]
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
    """Return the gradients of the fused projection [N, (nq + 2 nkv) d] and of the scales of the heads' norms."""
    shape: _Shape = ctx.shape
    s = shape.sizes
    to_inputs = torch.autograd.grad(ctx.attended, ctx.attention_inputs, grad.view_as(ctx.attended))
    fused = torch.cat(to_inputs, 2).flatten(0, 1)
    ctx.attended = ctx.attention_inputs = None
    to_qk = fused.view(shape.rows, shape.length, -1, s.head_dim)[:, :, : s.heads + s.kv_heads]
    _pairs(to_qk).mul_(rotation.conj())  # the inverse of a rotation is its conjugate
    to_scales: tuple[Tensor | None, Tensor | None] = (None, None)
    if head_norm:
        unit, r, scale = head_norm
        each = (to_qk * unit).sum((0, 1))
        to_scales = each[: s.heads].sum(0), each[s.heads :].sum(0)
        to_qk.copy_(_norm_backward(to_qk * scale, unit, r))
    return fused.flatten(1), to_scales


def _norm_backward(grad: Tensor, unit: Tensor, r: Tensor) -> Tensor:
    """Return the gradient of x, where unit = x * r(x): (grad - unit mean(grad unit)) r."""
    mean = (grad * unit).mean(-1, keepdim=True)
    return torch.addcmul(grad, unit, mean, value=-1).mul_(r)


def _pairs(x: Tensor) -> Tensor:
    """View adjacent pairs of the last dimension as complex numbers."""
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
