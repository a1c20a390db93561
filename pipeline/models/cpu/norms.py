"""Norms by the root mean square on the CPU, in fewer passes than torch's own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def normed(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x / rms(x) over the last dimension, and 1 / rms(x) [..., 1]."""
    r = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return x * r, r


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) over the last dimension, times weight [H], without gradient."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    return normed(x, eps)[0].mul_(weight)
