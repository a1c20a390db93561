"""Attention of pieces of different lengths that lie one after another, by a kernel for such pieces.

Nothing is padded, and the kernel is built for no shape. It runs on CUDA, in half precision. `kernel_for` chooses it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.models.kernels import HALF, matches_twin


class Piece(NamedTuple):
    """Neighbouring tokens that see those before them in the piece, and all tokens of the path that leads to it."""

    start: int
    size: int
    num_before: int
    """The number of tokens of that path."""
    first_key: int
    """The place of its first key among the keys of all pieces; those of the path come first, then its own."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of pieces that follow one another, for the kernel: a query sees keys up to its own, from the end."""

    queries: Tensor
    """int32 [P + 1]: the first token of each piece, and the number of all tokens."""
    keys: Tensor
    """int32 [P + 1]: the same for what each piece sees."""
    source: Tensor | None
    """int64 [M]: the token that each key is of. None: pieces see themselves alone, so keys lie as queries do."""
    max_queries: int
    max_keys: int

    @classmethod
    def of(cls, pieces: Sequence[Piece], table: Tensor, keys: Tensor) -> Ends:
        """Return the ends of all pieces; `table` [P, 4] has the same numbers on the device of `keys` [M]."""
        # In the order of tokens and of keys. Computed on the device, so the host waits for nothing.
        size, num_before = table.index_select(0, table[:, 0].argsort())[:, 1:3].unbind(1)
        ends = F.pad(torch.stack([size, num_before + size]).cumsum(1), (1, 0)).to(torch.int32)
        source = keys if any(p.num_before for p in pieces) else None
        most = max(p.size for p in pieces), max(p.num_before + p.size for p in pieces)
        return cls(ends[0], ends[1], source, *most)


def attend(
    query: Tensor, key: Tensor, value: Tensor, ends: Ends, scale: float | None, window: int | None, kernel: Any
) -> Tensor:
    """Return [N, heads, D] for query [N, heads, D], key and value [N, key heads, D]; see `Runs.attend`.

    `kernel`: takes the arguments of torch's `varlen_attn`.
    """
    if ends.source is not None:
        key, value = (x.index_select(0, ends.source) for x in (key, value))
    named: dict[str, Any] = {"scale": scale, "window_size": (_left(ends, window), 0)}
    if query.shape[1] != key.shape[1]:
        named["enable_gqa"] = True
    out: Tensor = kernel(query, key, value, ends.queries, ends.keys, ends.max_queries, ends.max_keys, **named)
    return out


def attend_with_sums(
    query: Tensor, key: Tensor, value: Tensor, ends: Ends, scale: float | None, window: int | None
) -> tuple[Tensor, Tensor]:
    """Return what `attend` returns by torch's kernel, and float32 [heads, N], the logarithms of its sums."""
    if ends.source is not None:
        key, value = (x.index_select(0, ends.source) for x in (key, value))
    left = _left(ends, window)
    most, gqa = (ends.max_queries, ends.max_keys), query.shape[1] != key.shape[1]
    call: Any = torch.ops.torch_attn._varlen_attn
    out, sums, _ = call(query, key, value, ends.queries, ends.keys, *most, left < 0, scale, [left, 0], gqa)
    return out, sums


def gradients(
    pull: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    ends: Ends,
    scale: float | None,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value by `pull`, that of `out`; `sums` as `attend_with_sums` returns."""
    seen = (key, value) if ends.source is None else [x.index_select(0, ends.source) for x in (key, value)]
    left, most = _left(ends, window), (ends.max_queries, ends.max_keys)
    random = torch.zeros(2, dtype=torch.uint64, device=query.device)  # of dropout, which there is none of
    call: Any = torch.ops.torch_attn._varlen_attn_backward
    of_query, *of_seen = call(
        pull, query, *seen, out, sums, ends.queries, ends.keys, *most, left < 0, random, scale, [left, 0]
    )
    if ends.source is not None:
        of_seen = [torch.zeros_like(key).index_add_(0, ends.source, gradient) for gradient in of_seen]
    return of_query, of_seen[0], of_seen[1]


def _left(ends: Ends, window: int | None) -> int:
    """Return how many tokens before its own a token sees at most; -1: all."""
    return -1 if window is None or window >= ends.max_keys else window - 1


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def has_own_gradients(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """True if attention is by torch's kernel, and its backward can be called by itself."""
    return kernel_for(device, dtype, head_size) is not None and hasattr(torch.ops.torch_attn, "_varlen_attn_backward")


def of_torch() -> Any:
    """Return torch's `varlen_attn`, which is told that queries share keys; earlier ones than 2.12 see it."""
    from torch.nn.attention.varlen import varlen_attn

    if "enable_gqa" in inspect.signature(varlen_attn).parameters:
        return varlen_attn
    return lambda *tensors, enable_gqa=False, **named: varlen_attn(*tensors, **named)


def kernel_for(device: torch.device, dtype: torch.dtype, head_size: int) -> Any | None:
    """Return torch's kernel of attention for heads of that size, or None where it is not used.

    It is used on CUDA in half precision, if it computes attention and its gradients as plain torch does on a few
    numbers, which is tried once.
    """
    return _kernel_for(device, dtype, head_size) if device.type == "cuda" and dtype in HALF else None


@functools.cache
def _kernel_for(device: torch.device, dtype: torch.dtype, head_size: int) -> Any | None:
    def proof() -> float:
        return gap(device, dtype, head_size, of_torch())

    with torch.inference_mode(False), torch.enable_grad():  # wherever it is first asked
        return of_torch() if matches_twin(f"attention of different lengths in {dtype}", proof, 3e-2) else None


def gap(device: torch.device, dtype: torch.dtype, head_size: int, kernel: Any) -> float:
    """Return the greatest difference from plain attention in float32, as a share of the greatest number compared."""
    pieces = [Piece(0, 40, 0, 0), Piece(40, 1, 0, 40), Piece(41, 70, 40, 41), Piece(111, 17, 110, 151)]
    own = torch.arange(128, device=device)
    seen = [own[:40], own[40:41], torch.cat([own[:40], own[41:111]]), torch.cat([own[:40], own[41:]])]
    ends = Ends.of(pieces, torch.tensor(pieces, device=device), torch.cat(seen))
    draw = torch.Generator().manual_seed(0)
    numbers = (torch.randn(128, heads, head_size, generator=draw).to(dtype).to(device) for heads in (4, 2, 2))
    query, key, value = (x.requires_grad_() for x in numbers)
    worst, scale = 0.0, 1.6 * head_size**-0.5
    for window in (None, 9):
        ours = attend(query, key, value, ends, scale, window, kernel)
        wide = query.float(), key.float(), value.float()
        theirs = torch.cat([_plainly(p, keys, *wide, scale, window) for p, keys in zip(pieces, seen, strict=True)])
        pull = torch.sin(torch.arange(ours.numel(), device=device)).view_as(theirs)
        gradients = [torch.autograd.grad((x.float() * pull).sum(), (query, key, value)) for x in (ours, theirs)]
        for a, b in zip((ours, *gradients[0]), (theirs, *gradients[1]), strict=True):
            worst = max(worst, float(((a.float() - b.float()).abs().max() / b.float().abs().max()).detach()))
    return worst


def _plainly(
    piece: Piece, keys: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None
) -> Tensor:
    """Return the attention of one piece, which sees the tokens `keys`, by a mask of all pairs."""
    q = query[piece.start : piece.start + piece.size].transpose(0, 1)
    k, v = (x[keys].transpose(0, 1) for x in (key, value))
    i = torch.arange(piece.size, device=query.device)[:, None] + piece.num_before
    j = torch.arange(k.shape[1], device=query.device)
    mask = (j <= i) if window is None else (j <= i) & (j > i - window)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True).transpose(0, 1)
