"""Log-probs and entropies of tokens from hidden states and output embeddings, in one pass over the vocabulary.

A program has some rows and some columns of the logits at a time, and keeps of each row the maximum, the sum of the
exponentials and, for the entropy, their mean: the logits [N, V] are never in memory. The backward makes the logits
again, and writes their gradient for some columns, in the type of the weights; two products of torch follow. All sums
are in float32. The columns that a program adds up depend on the size of the vocabulary alone, so the log-prob of a row
is the same whatever rows are computed with it, and nothing is added in an order that changes from call to call.

Source: the online softmax of arXiv:1805.02867; the same fusion is in arXiv:2411.09009, whose backward adds atomically
and leaves out small gradients, which this one does not.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from verizero.pipeline.models.kernels import is_interpreted, launching_on, matches_twin

TYPES = (torch.float32, torch.bfloat16, torch.float16)
SCRATCH_ELEMENTS = 1 << 25
"""At most so many numbers of the logits' gradient exist at once: 64 MiB in 16 bits."""
INTERPRETED = is_interpreted()
"""Triton's interpreter multiplies and stores bfloat16 wrongly, so numbers become float32 there, which is exact."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """The part of the product that a program has at a time; none of it changes a result but by rounding."""

    rows: int
    cols: int
    step: int
    """Hidden numbers that are multiplied at a time."""
    span: int
    """Columns of the vocabulary that one program of the forward goes over."""
    warps: int = 8
    stages: int = 3


HALF = Tiles(rows=128, cols=128, step=64, span=4096)
FULL = Tiles(rows=64, cols=64, step=32, span=4096, warps=4, stages=2)
"""float32 takes twice the shared memory and no tensor cores. Neither was chosen by measurement."""


def fits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """True if the kernel computes this output layer: no bias, and both of one type that it knows."""
    return bias is None and hidden.dtype == weight.dtype and hidden.dtype in TYPES


def log_probs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    entropy: bool = True,
    *,
    scratch: int = SCRATCH_ELEMENTS,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return log softmax(hidden weight^T / temperature)[targets] [N], and entropies [N] in nats if asked for.

    hidden [N, H], weight [V, H], targets int64 [N]; results in float32. Gradients reach hidden and weight, in their
    type. At most `scratch` numbers of the gradient of the logits exist at once, but those of one tile of columns.
    """
    # Fixed: a choice by timing would change numbers by chance.
    tiles = tiles or (FULL if weight.dtype == torch.float32 else HALF)
    picked, spread = _LogProbs.apply(hidden, weight, targets, temperature, entropy, scratch, tiles)
    return picked, spread if entropy else None


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        entropy: bool,
        scratch: int,
        tiles: Tiles,
    ) -> tuple[Tensor, Tensor]:
        hidden, weight = hidden.contiguous(), weight.contiguous()
        (num, width), vocab = hidden.shape, len(weight)
        parts = triton.cdiv(vocab, tiles.span)
        top, total, mean, hit = hidden.new_empty(4, parts, num, dtype=torch.float32)
        if num:
            with launching_on(hidden.device):
                _forward[(triton.cdiv(num, tiles.rows), parts)](
                    hidden, weight, targets, top, total, mean, hit, num, vocab, width, 1 / temperature, ENTROPY=entropy,
                    SPAN=tiles.span, **_constants(tiles),
                )  # fmt: skip
        # The parts of the vocabulary, put together: all sums are relative to the greatest logit of all.
        highest = top.amax(0)
        share = torch.exp(top - highest)
        mean = (mean + (top - highest) * total) * share
        total = (total * share).sum(0)
        normaliser = highest + total.log()
        spread = total.log() - mean.sum(0) / total if entropy else torch.zeros_like(normaliser)
        # One part has the target, and the others have 0.
        picked = (hit.sum(0) - highest) - total.log()
        ctx.save_for_backward(hidden, weight, targets, normaliser, spread)
        ctx.temperature, ctx.scratch, ctx.tiles = temperature, scratch, tiles
        ctx.set_materialize_grads(False)
        return picked, spread

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, pull: Tensor | None, push: Tensor | None = None) -> tuple[Tensor | None, ...]:
        if pull is None and push is None:
            return (None,) * 7
        hidden, weight, targets, normaliser, spread = ctx.saved_tensors
        to_hidden = torch.zeros_like(hidden, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        tiles: Tiles = ctx.tiles
        (num, width), vocab = hidden.shape, len(weight)
        pull = torch.zeros_like(normaliser) if pull is None else pull.contiguous()
        most = max(1, ctx.scratch // max(1, num) // tiles.cols) * tiles.cols
        memory = hidden.new_empty(num * min(most, vocab), dtype=torch.float32 if INTERPRETED else hidden.dtype)
        for first in range(0, vocab if num else 0, most):
            cols = slice(first, min(first + most, vocab))
            wide = cols.stop - first
            to_logits = memory[: num * wide].view(num, wide)
            with launching_on(hidden.device):
                _to_logits[(triton.cdiv(num, tiles.rows), triton.cdiv(wide, tiles.cols))](
                    hidden, weight, targets, normaliser, spread, pull, pull if push is None else push.contiguous(),
                    to_logits, num, cols.stop, width, first, wide, 1 / ctx.temperature, ENTROPY=push is not None,
                    **_constants(tiles),
                )  # fmt: skip
            to_logits = to_logits.to(hidden.dtype)
            if to_weight is not None:
                to_weight[cols] = _wide_product(to_logits.t(), hidden)
            if to_hidden is not None:
                to_hidden += _wide_product(to_logits, weight[cols])
        return None if to_hidden is None else to_hidden.to(hidden.dtype), to_weight, None, None, None, None, None


def _constants(tiles: Tiles) -> dict[str, Any]:
    return {
        "ROWS": tiles.rows,
        "COLS": tiles.cols,
        "STEP": tiles.step,
        "RAISE": INTERPRETED,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }


def _wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a [n, k] times b [k, m] in float32."""
    if a.dtype == torch.float32:
        return a @ b
    # Only CUDA has a product whose result is wider than its factors.
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


@triton.jit
def _logits(
    HIDDEN, WEIGHT, r, c, num, vocab, width, per_temperature,
    ROWS: tl.constexpr, COLS: tl.constexpr, STEP: tl.constexpr, RAISE: tl.constexpr,
):  # fmt: skip
    """Return the logits of rows r and columns c over the temperature; -inf behind the last column."""
    z = tl.zeros([ROWS, COLS], tl.float32)
    x_at = HIDDEN + r[:, None].to(tl.int64) * width
    w_at = WEIGHT + c[:, None].to(tl.int64) * width
    for start in range(0, width, STEP):
        h = start + tl.arange(0, STEP)
        x = tl.load(x_at + h[None, :], mask=(r[:, None] < num) & (h[None, :] < width), other=0.0)
        w = tl.load(w_at + h[None, :], mask=(c[:, None] < vocab) & (h[None, :] < width), other=0.0)
        if RAISE:
            x, w = x.to(tl.float32), w.to(tl.float32)
        z = tl.dot(x, tl.trans(w), z, input_precision="ieee")
    return tl.where(c[None, :] < vocab, z * per_temperature, float("-inf"))


@triton.jit
def _forward(
    HIDDEN, WEIGHT, TARGETS, TOP, TOTAL, MEAN, HIT, num, vocab, width, per_temperature,
    ENTROPY: tl.constexpr, SPAN: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, STEP: tl.constexpr, RAISE: tl.constexpr,
):  # fmt: skip
    """Write, for some rows and a span of columns, max z, sum exp(z - max), sum exp(z - max) (z - max), z[target]."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    target = tl.load(TARGETS + r, mask=r < num, other=-1)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total, mean, hit = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    first = tl.program_id(1) * SPAN
    for start in range(first, tl.minimum(first + SPAN, vocab), COLS):
        c = start + tl.arange(0, COLS)
        z = _logits(HIDDEN, WEIGHT, r, c, num, vocab, width, per_temperature, ROWS, COLS, STEP, RAISE)
        new = tl.maximum(top, tl.max(z, 1))
        shift = tl.where(total > 0, top - new, 0.0)  # -inf before the first columns
        shrink = tl.exp(shift)
        p = tl.exp(z - new[:, None])
        if ENTROPY:
            # Relative to the maximum: a sum of p z would lose what z's size has more digits than.
            away = tl.where(c[None, :] < vocab, z - new[:, None], 0.0)
            mean = (mean + shift * total) * shrink + tl.sum(p * away, 1)
        total = total * shrink + tl.sum(p, 1)
        hit += tl.sum(tl.where(c[None, :] == target[:, None], z, 0.0), 1)
        top = new
    out = tl.program_id(1).to(tl.int64) * num + r
    tl.store(TOP + out, top, mask=r < num)
    tl.store(TOTAL + out, total, mask=r < num)
    tl.store(MEAN + out, mean, mask=r < num)
    tl.store(HIT + out, hit, mask=r < num)


@triton.jit
def _to_logits(
    HIDDEN, WEIGHT, TARGETS, NORMALISER, SPREAD, PULL, PUSH, OUT, num, vocab, width, first, wide, per_temperature,
    ENTROPY: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STEP: tl.constexpr, RAISE: tl.constexpr,
):  # fmt: skip
    """Write the gradient of sum(PULL * log-probs + PUSH * entropies) to the logits of `wide` columns after `first`."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.program_id(1) * COLS + tl.arange(0, COLS)
    c = first + at
    z = _logits(HIDDEN, WEIGHT, r, c, num, vocab, width, per_temperature, ROWS, COLS, STEP, RAISE)
    # The chain rule through logits / temperature is in `pull` and `push`.
    pull = tl.load(PULL + r, mask=r < num, other=0.0) * per_temperature
    log_p = z - tl.load(NORMALISER + r, mask=r < num, other=0.0)[:, None]
    p = tl.exp(log_p)
    # d logp_y / d z_j = [j = y] - p_j;   d H / d z_j = -p_j (log p_j + H)
    grad = -p * pull[:, None]
    if ENTROPY:
        push = tl.load(PUSH + r, mask=r < num, other=0.0) * per_temperature
        spread = tl.load(SPREAD + r, mask=r < num, other=0.0)
        grad -= tl.where(p > 0, p * (log_p + spread[:, None]), 0.0) * push[:, None]
    target = tl.load(TARGETS + r, mask=r < num, other=-1)
    grad += tl.where(c[None, :] == target[:, None], pull[:, None], 0.0)
    to = OUT + r[:, None].to(tl.int64) * wide + at[None, :]
    tl.store(to, grad.to(OUT.dtype.element_ty), mask=(r[:, None] < num) & (at[None, :] < wide))


@functools.cache
def is_proved(device: torch.device, dtype: torch.dtype) -> bool:
    """True if log-probs, entropies and gradients are torch's on that device, on a few tokens; tried once."""
    allowed = 1e-3 if dtype == torch.float32 else 5e-2
    with torch.inference_mode(False), torch.enable_grad():  # wherever it is first asked
        return matches_twin(f"log-probs in {str(dtype).removeprefix('torch.')}", lambda: _gap(device, dtype), allowed)


def _gap(device: torch.device, dtype: torch.dtype) -> float:
    """Return the greatest difference from torch in float32, as a share of the greatest number compared."""
    generator = torch.Generator().manual_seed(0)
    numbers = (torch.randn(n, 96, generator=generator).to(dtype).to(device) for n in (37, 331))
    hidden, weight = (x.requires_grad_() for x in numbers)
    targets = torch.arange(37, device=device) * 7
    made = log_probs(hidden, weight, targets, 2.0, scratch=37 * 256)
    full = (hidden.float() @ weight.float().t() / 2.0).log_softmax(-1)
    wanted = full.gather(1, targets[:, None])[:, 0], -(full.exp() * full).sum(-1)
    gap = 0.0
    gradients = []
    for values, entropies in (made, wanted):
        assert entropies is not None
        loss = (values * torch.linspace(-1, 1, 37, device=device)).sum() + entropies.sum()
        gradients.append(torch.autograd.grad(loss, (hidden, weight)))
    for ours, theirs in zip((*made, *gradients[0]), (*wanted, *gradients[1]), strict=True):
        assert ours is not None
        gap = max(gap, float(((ours - theirs).abs().max() / theirs.abs().max()).detach()))
    return gap
