"""Products with weights that stay as they are while adapters are trained: the adapters' part, and weights in 4 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.models.adapted_layers import NAME
from verizero.pipeline.models.cpu.onednn import product
from verizero.pipeline.models.quantized import dense

Factors = tuple[Tensor, Tensor]
"""down [R, I] and up [O, R]: adapters add x down^T up^T to a product."""
Order = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class InFourBits:
    """Weights in 4 bits [O_i, I] that are one product; they are made numbers again for each, one after another."""

    weights: Sequence[Any]
    order: Tensor | None = None
    """int64 [O]: the place of each output among those of all weights; None: as they are."""

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x [B, I] times the weights transposed, in `order`, plus bias [O]."""
        parts = [product(x, dense(weight)) for weight in self.weights]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        out = out if self.order is None else out.index_select(1, self.order)
        return out if bias is None else out.add_(bias)


def factors_of(modules: Sequence[Any], orders: Sequence[Order | None] = ()) -> Factors | None:
    """Return the factors of the adapters of linear layers that are one product; None if none has adapters.

    orders: for each layer the order of its outputs [O_i, ...]; None and () leave it.
    """
    adapted = [hasattr(module, "lora_A") for module in modules]
    if not any(adapted):
        return None
    down = torch.cat([m.lora_A[NAME].weight for m, has in zip(modules, adapted, strict=True) if has])
    up = down.new_zeros(sum(m.out_features for m in modules), len(down))
    row = column = 0
    for module, has, order in zip(modules, adapted, orders or [None] * len(modules), strict=True):
        if has:
            own = module.lora_B[NAME].weight * module.scaling[NAME]
            up[row : row + len(own), column : column + own.shape[1]] = own if order is None else order(own)
            column += own.shape[1]
        row += module.out_features
    return down, up


def times(x: Tensor, weight: Tensor | InFourBits, bias: Tensor | None, factors: Factors | None) -> Tensor:
    """Return x [B, I] times a weight [O, I] transposed, plus bias [O] and what adapters add, in their own type."""
    out = product(x, weight, bias) if isinstance(weight, Tensor) else weight.product(x, bias)
    if factors is None:
        return out
    down, up = factors
    added = product(product(x.to(down.dtype), down), up)
    return out.add_(added) if added.dtype == out.dtype else (out + added).to(out.dtype)
