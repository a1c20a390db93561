"""Attention of pieces of different lengths: piece by piece, by a table of all pairs."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen as torchs

from verizero.pipeline.models import runs, varlen


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """What torch's function of this name returns; the last query of a piece sees its last key."""
    assert window_size[1] == 0, "a token sees none after it"
    assert enable_gqa or query.shape[1] == key.shape[1]
    assert {cu_seq_q.dtype, cu_seq_k.dtype} == {torch.int32}
    q_ends, k_ends = cu_seq_q.tolist(), cu_seq_k.tolist()
    assert (q_ends[-1], k_ends[-1]) == (len(query), len(key)), "every token is in a piece"
    assert max_q == max(b - a for a, b in itertools.pairwise(q_ends))
    assert max_k == max(b - a for a, b in itertools.pairwise(k_ends))
    shared = query.shape[1] // key.shape[1]
    size = query.shape[2] ** -0.5 if scale is None else scale
    out = []
    for (q_begin, q_end), (k_begin, k_end) in zip(itertools.pairwise(q_ends), itertools.pairwise(k_ends), strict=True):
        before = (k_end - k_begin) - (q_end - q_begin)
        last = before + torch.arange(q_end - q_begin)[:, None]
        place = torch.arange(k_end - k_begin)[None]
        hidden = (place > last) | ((window_size[0] >= 0) & (place < last - window_size[0]))
        keys, values = (x[k_begin:k_end].repeat_interleave(shared, 1) for x in (key, value))
        scores = size * torch.einsum("ihd,jhd->hij", query[q_begin:q_end], keys)
        out.append(torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, float("-inf")).softmax(-1), values))
    return torch.cat(out)


def gradients(
    pull: Tensor, query: Tensor, key: Tensor, value: Tensor, ends: Any, scale: float | None, window: int | None
) -> tuple[Tensor, ...]:
    """Gradients of query, key and value [N, heads, D] by `pull`, that of the result, written out: dS = P (dP - sum)."""
    seen = torch.arange(len(key)) if ends.source is None else ends.source
    shared = query.shape[1] // key.shape[1]
    size = query.shape[2] ** -0.5 if scale is None else scale
    by_query, by_key, by_value = (torch.zeros_like(x) for x in (query, key, value))
    pairs = (itertools.pairwise(x.tolist()) for x in (ends.queries, ends.keys))
    for (q_begin, q_end), (k_begin, k_end) in zip(*pairs, strict=True):
        at = seen[k_begin:k_end]
        last = (k_end - k_begin) - (q_end - q_begin) + torch.arange(q_end - q_begin)[:, None]
        place = torch.arange(k_end - k_begin)[None]
        hidden = (place > last) | ((window is not None) & (place <= last - (window or 0)))
        keys, values = (x[at].repeat_interleave(shared, 1) for x in (key, value))
        scores = size * torch.einsum("ihd,jhd->hij", query[q_begin:q_end], keys)
        share = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        by_share = torch.einsum("ihd,jhd->hij", pull[q_begin:q_end], values)
        by_score = size * share * (by_share - (share * by_share).sum(-1, keepdim=True))
        by_query[q_begin:q_end] = torch.einsum("hij,jhd->ihd", by_score, keys)
        for total, part in (
            (by_key, torch.einsum("hij,ihd->jhd", by_score, query[q_begin:q_end])),
            (by_value, torch.einsum("hij,ihd->jhd", share, pull[q_begin:q_end])),
        ):
            total.index_add_(0, at, part.unflatten(1, (key.shape[1], shared)).sum(2))
    return by_query, by_key, by_value


def take_the_place_of_the_kernel(patch: pytest.MonkeyPatch) -> None:
    """Let these doubles compute, and pad packed rows, as on a GPU."""
    assert hasattr(torch.ops.torch_attn, "_varlen_attn_backward"), torchs

    def with_sums(query: Tensor, key: Tensor, value: Tensor, ends: Any, *how: Any) -> tuple[Tensor, Tensor]:
        return varlen.attend(query, key, value, ends, *how, varlen_attn), query.new_zeros(query.shape[1::-1]).float()

    width = runs.packed_width
    patch.setattr(runs, "packed_width", lambda tokens, most, device: width(tokens, most, "cuda"))
    patch.setattr(varlen, "kernel_for", lambda *_: varlen_attn)
    patch.setattr(varlen, "attend_with_sums", with_sums)
    patch.setattr(
        varlen, "gradients", lambda pull, q, k, v, out, sums, ends, *how: gradients(pull, q, k, v, ends, *how)
    )
