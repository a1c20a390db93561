"""Linear layers of float32 on the CPU through oneDNN, forward and backward.

torch multiplies float32 matrices with the BLAS that it was built with. Where that library picks a kernel by the maker
of the processor, oneDNN, which generates code for the instructions that are there, is up to twice as fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HAS_ONEDNN: bool = torch.backends.mkldnn.is_available() and hasattr(  # type: ignore[no-untyped-call]
    torch.ops.mkldnn, "_linear_pointwise"
)


COPIED_FROM = 1 << 19
"""A transposed weight of so many numbers is copied before a product with it. oneDNN copies it anyway, slowly where it
is large: on two cores of AMD's without AVX-512, 2,048 rows, 576 times 1,536 with 64 in place of 45 GFLOP/s, and 256
times 704 as fast as before."""

PACKED_FOR_ROWS = 16
"""The number of rows that a packed weight is ordered for. Any number but 1 gives the same order, and each number of
rows computes with it."""


def packed(weight: Tensor) -> Tensor:
    """Return a copy of weight [O, I] for `product` alone, in the order in which oneDNN reads it; elsewhere a plain one.

    oneDNN reorders a plain weight in each product, which takes a third of the time with few rows. Measured with 576
    inputs and 1,536 outputs on two threads, packed and plain: 8 rows 0.12 and 0.17 ms, 32 rows 0.31 and 0.38 ms, 256
    rows 2.10 and 2.21 ms.
    """
    weight = weight.detach()
    if weight.numel() == 0 or not _applies(weight, weight):
        return weight.clone()
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR_ROWS)  # type: ignore[no-any-return]


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x [..., I] times weight [O, I] transposed, plus bias [O], without gradient; elsewhere by `F.linear`.

    The weight may be `packed`; then x has at least one row.
    """
    if x.numel() == 0 or not _applies(x, weight):  # oneDNN has no empty products
        return F.linear(x, weight, bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the same as `product`, with gradient.

    Without any rows too it is the same node of the graph: ZeRO adds up gradients over ranks in the order in which they
    come, and a rank may have no rows.
    """
    if not _applies(x, weight):
        return F.linear(x, weight, bias)
    out: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def use_onednn(model: nn.Module) -> None:
    """Make the linear layers of `model` compute with oneDNN; weights, names and saved files stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = FastLinear


class FastLinear(nn.Linear):
    """An `nn.Linear` that computes with oneDNN for float32 on the CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Map x [..., I] to [..., O]."""
        return linear(input, self.weight, self.bias)


def _applies(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and HAS_ONEDNN
        and not torch.is_autocast_enabled("cpu")
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.with_bias = bias is not None
        return product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        to_x, to_weight, to_bias = None, None, None
        if ctx.needs_input_grad[0]:
            to_x = to_input(grad, weight)
        if ctx.needs_input_grad[1]:
            to_weight = outer(rows, x.reshape(-1, x.shape[-1]))
        if ctx.with_bias and ctx.needs_input_grad[2]:
            to_bias = rows.sum(0)
        return to_x, to_weight, to_bias


def to_input(grad: Tensor, weight: Tensor) -> Tensor:
    """Return grad [..., O] times weight [O, I], the gradient of what the weight was multiplied with."""
    return product(grad, transposed(weight))


def transposed(weight: Tensor) -> Tensor:
    """Return weight [O, I] transposed, for `product`: a copy where that is faster."""
    is_copied = weight.numel() >= COPIED_FROM and _applies(weight, weight)
    return weight.t().contiguous() if is_copied else weight.t()


def outer(grad: Tensor, x: Tensor) -> Tensor:
    """Return grad [N, O] transposed times x [N, I], the gradient of a weight.

    By the BLAS of torch, which is MKL on most machines: oneDNN would copy a transposed factor, and its convolution,
    which copies none, is slower. Two cores each, in GFLOP/s, MKL and convolution: Intel's 310 and 60 to 210, AMD's with
    AVX-512 160 to 200 and 100 to 160, AMD's without it 55 to 69 and 17 to 24.
    """
    return torch.mm(grad.t(), x)
