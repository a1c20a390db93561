"""Attention of short rows on the CPU, against softmax written out in float64 and against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.models.short_attention import MAX_KEYS, attend, is_short

SIZES = [(1, 1, 1, 1, 1, 4), (3, 7, 7, 4, 2, 8), (2, 5, 9, 6, 1, 8), (2, 16, 16, 3, 3, 16)]
"""Rows, queries, keys, heads, key heads, numbers of a head."""


def double(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return attention [R, Q, heads, d] head by head, with all numbers in float64."""
    rows, heads, group = [], q.shape[2], q.shape[2] // k.shape[2]
    for r in range(len(q)):
        seen = mask[min(r, len(mask) - 1), 0]
        each = []
        for h in range(heads):
            scores = (q[r, :, h] @ k[r, :, h // group].T) * scale
            weights = scores.exp() * seen
            each.append((weights / weights.sum(1, keepdim=True)) @ v[r, :, h // group])
        rows.append(torch.stack(each, 1))
    return torch.stack(rows)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("masked", ["causal", "of each row", "of all rows"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_values_and_gradients_are_those_of_the_double(
    sizes: tuple[int, int, int, int, int, int], masked: str, scale: float | None
) -> None:
    rows, queries, keys, heads, kv, d = sizes
    noise = torch.Generator().manual_seed(sum(sizes))
    # as in training: slices of one product
    fused = torch.randn(rows, max(queries, keys), heads + 2 * kv, d, generator=noise)
    leaves = [fused[:, :queries, :heads], fused[:, :keys, heads : heads + kv], fused[:, :keys, heads + kv :]]
    up = torch.randn(rows, queries, heads, d, generator=noise)
    mask = None
    if masked != "causal":
        mask = torch.rand(rows if masked == "of each row" else 1, 1, queries, keys, generator=noise) < 0.5
        mask[..., 0] = True
    seen = torch.ones(queries, keys, dtype=torch.bool).tril()[None, None] if mask is None else mask
    ours = [x.clone().requires_grad_() for x in leaves]
    exact = [x.double().requires_grad_() for x in leaves]
    out = attend(*ours, mask, scale)
    out.backward(up)
    wanted = double(*exact, seen, d**-0.5 if scale is None else scale)
    wanted.backward(up.double())
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(ours, exact, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=2e-5)


def test_it_agrees_with_torchs_own() -> None:
    q, k, v = (torch.randn(4, 30, heads, 16, generator=torch.Generator().manual_seed(heads)) for heads in (6, 2, 2))
    theirs = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(attend(q, k, v), theirs.transpose(1, 2), rtol=1e-5, atol=1e-5)


def test_what_is_computed_here() -> None:
    q = torch.zeros(1, 3, 2, 4)
    assert is_short(q, 1)
    assert is_short(q.double(), MAX_KEYS)
    assert not is_short(q, MAX_KEYS + 1)
    assert not is_short(q, 0)
    assert not is_short(q.bfloat16(), 8)
    assert not is_short(q.to("meta"), 8)
