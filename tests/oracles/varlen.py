"""Attention of pieces of different lengths: piece by piece, by a table of all pairs."""

import itertools

import torch
from torch import Tensor


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
