"""Attention of short rows on the CPU, for training: a few products of all rows and heads together.

torch's attention for the CPU computes each head of each row by itself, and its backward computes the weights again.
With few keys it is faster to keep the attention weights of the forward. Forward and backward of 2,240 tokens of 4 heads
on two threads: 1.0 ms here and 3.4 ms by torch with 16 keys, 3.2 and 4.7 ms with 70. On one thread: 1.9 and 2.4 ms, 5.7
and 6.9 ms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MAX_KEYS = 80
"""From 96 keys on torch's attention is as fast, and keeps no weights."""


def is_short(q: Tensor, num_keys: int) -> bool:
    """True if `attend` is the faster way for queries [R, Q, heads, d] with that many keys each."""
    return q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64) and 0 < num_keys <= MAX_KEYS


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Return attention [R, Q, heads, d] for q [R, Q, heads, d], k and v [R, K, key heads, d].

    mask: bool [R, 1, Q, K], or 1 for R, true where a query sees a key; None: query i sees the first i + 1 keys.
    scale: of the products, 1 / sqrt(d) if None. Each query must see a key.
    """
    if mask is None:
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()[None, None]
    # Added to the scores: to fill them by a mask takes longer.
    bias = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, torch.finfo(q.dtype).min)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    out: Tensor = _Attention.apply(q, k, v, bias, scale)  # type: ignore[no-untyped-call]
    return out


class _Attention(torch.autograd.Function):
    """Heads that share keys become query rows of one product, for all rows at once."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        (rows, num, heads, d), (num_keys, kv) = q.shape, k.shape[1:3]
        ctx.sizes, ctx.scale = (rows, kv, heads // kv, num, d), scale
        queries = _by_key_head(q, kv)
        keys, values = (x.transpose(1, 2).reshape(rows * kv, num_keys, d) for x in (k, v))
        scores = _product(queries, keys.mT, scale)
        scores.view(rows, kv, -1, num, num_keys).add_(bias[:, :, None])
        weights = scores.softmax(-1)
        ctx.save_for_backward(queries, keys, values, weights)
        return _by_token(torch.bmm(weights, values), ctx.sizes)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, weights = ctx.saved_tensors
        rows, kv = ctx.sizes[:2]
        of_heads = _by_key_head(grad, kv)
        to_weights = torch.bmm(of_heads, values.mT)
        to_scores = torch._softmax_backward_data(to_weights, weights, -1, weights.dtype)
        to_q = _by_token(_product(to_scores, keys, ctx.scale), ctx.sizes)
        to_k, to_v = _product(to_scores.mT, queries, ctx.scale), torch.bmm(weights.mT, of_heads)
        of_keys = (x.view(rows, kv, *x.shape[1:]).transpose(1, 2) for x in (to_k, to_v))
        return to_q, *of_keys, None, None


def _product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return scale a b for each pair of matrices, without a pass for the scale."""
    nothing = a.new_empty(1, 1, 1).expand(a.shape[0], a.shape[1], b.shape[2])  # with beta=0 only its shape is read
    return torch.baddbmm(nothing, a, b, beta=0, alpha=scale)


def _by_key_head(x: Tensor, kv: int) -> Tensor:
    """Return [R kv, group Q, d] of x [R, Q, heads, d]."""
    rows, num, heads, d = x.shape
    return x.reshape(rows, num, kv, heads // kv, d).permute(0, 2, 3, 1, 4).reshape(rows * kv, -1, d)


def _by_token(x: Tensor, sizes: tuple[int, int, int, int, int]) -> Tensor:
    """Return [R, Q, heads, d] of x [R kv, group Q, d]; sizes: R, kv, group, Q, d."""
    rows, kv, group, num, d = sizes
    return x.view(rows, kv, group, num, d).permute(0, 3, 1, 2, 4).reshape(rows, num, kv * group, d)
