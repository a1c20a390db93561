"""Attention of a decode step: one query a row over the keys of its prompt, which rows may share, and its own.

The keys of a row are split over programs, SPAN to each, and their results are merged after: a long row of a small batch
keeps a whole GPU busy. Query heads that share a key head are one program's, so keys and values are read once. Spans are
counted from the first column of the prompt and of the row's own, so a row's result is the same whatever its batch.

Source: Flash-Decoding (https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from verizero.pipeline.models.kernels import is_interpreted, launching_on, proved

TYPES = (torch.float32, torch.bfloat16, torch.float16)
SPAN = 256
"""Keys of one program."""
BLOCK = 64
"""Keys that are multiplied at a time."""
WARPS, STAGES = 4, 2
"""Warps of a program, and loads under way at once. None of these numbers was chosen by measurement."""
LEAST = 16
"""The least side of a product on tensor cores."""
INTERPRETED = is_interpreted()
"""Triton's interpreter multiplies and stores bfloat16 wrongly, so numbers become float32 there, which is exact."""


Prompts = tuple[Tensor, Tensor, Tensor, Tensor]
"""Keys [G, kv heads, d, P], values [G, kv heads, P, d] of prompts; int64 [B]: each row's; int64 [G]: their tokens."""


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    stops: Tensor,
    longest: int,
    prompts: Prompts | None = None,
    *,
    span: int = SPAN,
) -> Tensor:
    """Return softmax(q keys / sqrt(d)) values [B, heads, d], over a row's prompt and its own first stops[b] columns.

    q [B, heads, d]; keys [B, kv heads, d, T] and values [B, kv heads, T, d] in any order of memory, in `prompts` with
    the same steps between columns and numbers; stops int64 [B]. `longest`: at least the most own columns of a row,
    which the host knows without a look at the device. A row without a column gets 0.
    """
    (rows, heads, d), kv, group = q.shape, keys.shape[1], q.shape[1] // keys.shape[1]
    theirs = (keys, values, stops, stops) if prompts is None else prompts
    assert [x.stride()[2:] for x in theirs[:2]] == [keys.stride()[2:], values.stride()[2:]] or prompts is None
    before = 0 if prompts is None else triton.cdiv(theirs[1].shape[2], span)
    splits = before + max(1, triton.cdiv(longest, span))
    out = torch.empty(rows, heads, d, dtype=torch.float32 if INTERPRETED else q.dtype, device=q.device)
    if splits == 1:  # nothing to merge: one launch less
        parts, tops, totals = out, out, out
    else:
        parts = torch.empty(rows, heads, splits, d, dtype=torch.float32, device=q.device)
        tops, totals = parts.new_empty(2, rows, heads, splits)
    padded = max(LEAST, triton.next_power_of_2(d))
    is_shared = prompts is not None
    with launching_on(q.device):
        _attend[(rows, kv, splits)](
            q, keys, values, stops, *theirs, parts, tops, totals, d**-0.5, *q.stride(), *keys.stride(),
            *values.stride(), *theirs[0].stride()[:2], *theirs[1].stride()[:2], before, splits, KV=kv, GROUP=group,
            G=max(LEAST, triton.next_power_of_2(group)), DIM=d, D=padded, SPAN=span, BLOCK=min(BLOCK, span),
            WHOLE=splits == 1, SHARED=is_shared, RAISE=INTERPRETED, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
        if splits > 1:
            _merge[(rows, heads)](
                parts, tops, totals, stops, *theirs[2:], out, before, splits,
                HEADS=heads, DIM=d, D=padded, SPAN=span, SHARED=is_shared, num_warps=1,
            )  # fmt: skip
    return out.to(q.dtype)


@triton.jit
def _attend(
    Q, KEYS, VALUES, STOPS, P_KEYS, P_VALUES, PROMPT, P_LENGTHS, OUT, TOPS, TOTALS, scale, q_row, q_head, q_dim,
    k_row, k_head, k_dim, k_col, v_row, v_head, v_col, v_dim, pk_row, pk_head, pv_row, pv_head,
    before, splits, KV: tl.constexpr, GROUP: tl.constexpr, G: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr,
    SPAN: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, SHARED: tl.constexpr, RAISE: tl.constexpr,
):  # fmt: skip
    """Write, for one row, one key head and one span, the weighted sum of values, and the maximum and sum of weights.

    The first `before` spans are the prompt's.
    """
    row, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    start, end = (split - before) * SPAN, tl.load(STOPS + row)
    k_from, v_from = KEYS + row * k_row + head * k_head, VALUES + row * v_row + head * v_head
    if SHARED:  # noqa: SIM102  # this is decided when the kernel is compiled, the other when it runs
        if split < before:
            prompt = tl.load(PROMPT + row)
            start, end = split * SPAN, tl.load(P_LENGTHS + prompt)
            k_from, v_from = P_KEYS + prompt * pk_row + head * pk_head, P_VALUES + prompt * pv_row + head * pv_head
    stop = tl.minimum(start + SPAN, end)
    g, d = tl.arange(0, G), tl.arange(0, D)
    is_query, is_dim = g < GROUP, d < DIM
    q_at = Q + row * q_row + (head * GROUP + g)[:, None] * q_head + d[None, :] * q_dim
    q = tl.load(q_at, mask=is_query[:, None] & is_dim[None, :], other=0.0)
    q = q.to(tl.float32) if RAISE else q
    top = tl.full([G], float("-inf"), tl.float32)
    total, acc = tl.zeros([G], tl.float32), tl.zeros([G, D], tl.float32)
    for first in range(start, stop, BLOCK):
        t = first + tl.arange(0, BLOCK)
        k_at = k_from + d[:, None] * k_dim + t[None, :] * k_col
        k = tl.load(k_at, mask=is_dim[:, None] & (t[None, :] < stop), other=0.0)
        k = k.to(tl.float32) if RAISE else k
        score = tl.dot(q, k, input_precision="ieee") * scale
        score = tl.where(t[None, :] < stop, score, float("-inf"))
        new = tl.maximum(top, tl.max(score, 1))
        p, shrink = tl.exp(score - new[:, None]), tl.exp(top - new)
        v_at = v_from + t[:, None] * v_col + d[None, :] * v_dim
        v = tl.load(v_at, mask=(t[:, None] < stop) & is_dim[None, :], other=0.0)
        v = v.to(tl.float32) if RAISE else v
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        total, top = total * shrink + tl.sum(p, 1), new
    at = row * KV * GROUP + head * GROUP + g
    if WHOLE:
        acc = acc / tl.where(total > 0, total, 1.0)[:, None]
        to = OUT + at[:, None] * DIM + d[None, :]
        tl.store(to, acc.to(OUT.dtype.element_ty), mask=is_query[:, None] & is_dim[None, :])
    else:  # what lies behind a row's last span is neither written nor read
        at = at * splits + split
        to = OUT + at[:, None] * DIM + d[None, :]
        tl.store(to, acc, mask=is_query[:, None] & is_dim[None, :] & (start < stop))
        tl.store(TOPS + at, top, mask=is_query & (start < stop))
        tl.store(TOTALS + at, total, mask=is_query & (start < stop))


@triton.jit
def _merge(
    PARTS, TOPS, TOTALS, STOPS, PROMPT, P_LENGTHS, OUT, before, splits,
    HEADS: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, SPAN: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Write the attention of one row and head from those of its spans: of its prompt, and of its own columns."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    of_prompt = 0
    if SHARED:
        of_prompt = tl.cdiv(tl.load(P_LENGTHS + tl.load(PROMPT + row)), SPAN)
    used = of_prompt + tl.cdiv(tl.load(STOPS + row), SPAN)
    d = tl.arange(0, D)
    at = (row * HEADS + head) * splits
    top = float("-inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for i in range(used):
        split = at + tl.where(i < of_prompt, i, i - of_prompt + before)
        own = tl.load(TOPS + split)
        new = tl.maximum(top, own)
        old_share, share = tl.exp(top - new), tl.exp(own - new)
        acc = acc * old_share + tl.load(PARTS + split * DIM + d, mask=d < DIM, other=0.0) * share
        total = total * old_share + tl.load(TOTALS + split) * share
        top = new
    acc = acc / tl.where(total > 0, total, 1.0)
    tl.store(OUT + (row * HEADS + head) * DIM + d, acc.to(OUT.dtype.element_ty), mask=d < DIM)


@functools.cache
def is_proved(device: torch.device, dtype: torch.dtype, heads: int, kv: int, d: int) -> bool:
    """True if attention with heads of those numbers is torch's on that device, on two rows; tried once."""
    if dtype not in TYPES:
        return False
    allowed = 1e-4 if dtype == torch.float32 else 2e-2
    name = f"decode attention in {str(dtype).removeprefix('torch.')}"
    return proved(name, lambda: _gap(device, dtype, heads, kv, d), allowed)


def _gap(device: torch.device, dtype: torch.dtype, heads: int, kv: int, d: int) -> float:
    """Return the greatest difference from torch in float32; the values are about 1."""
    generator, wide = torch.Generator().manual_seed(0), 300
    shapes = (2, heads, d), (2, kv, wide, d), (2, kv, wide, d), (1, kv, 70, d), (1, kv, 70, d)
    q, keys, values, *theirs = (torch.randn(*s, generator=generator).to(dtype).to(device) for s in shapes)
    stops, first, length = (torch.tensor(x, device=device) for x in ([297, 40], [0, 0], [66]))
    prompts = (theirs[0].mT, theirs[1], first, length)
    gap = 0.0
    # Merged, written at once, and with a prompt that both rows share.
    for longest, used, shared in ((wide, stops, None), (SPAN, stops.clamp(max=SPAN), None), (wide, stops, prompts)):
        ours = attend(q, keys.mT, values, used, longest, shared)
        for row, end in enumerate(used.tolist()):
            own = [x[row, :, :end] for x in (keys, values)]
            if shared is not None:
                own = [torch.cat([x[0, :, : int(length)], y], 1) for x, y in zip(theirs, own, strict=True)]
            k, v = (x.float().repeat_interleave(heads // kv, 0) for x in own)
            weights = (torch.einsum("hd,htd->ht", q[row].float(), k) * d**-0.5).softmax(-1)
            gap = max(gap, float((ours[row].float() - torch.einsum("ht,htd->hd", weights, v)).abs().max()))
    return gap
