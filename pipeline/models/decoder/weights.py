"""Weights of the Llama family (Llama, Mistral, Qwen2, Qwen3) as generation reads them, and its products.

Products of float32 on the CPU, without gradient, go through oneDNN. torch multiplies float32 matrices with the BLAS it
was built with. Where that library picks a kernel by the maker of the processor, oneDNN, which generates code for the
instructions that are there, is up to twice as fast. Weights that stay as they are while adapters are trained may be in
4 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.models.adapted_layers import NAME
from verizero.pipeline.models.quantized import dense

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
Factors = tuple[Tensor, Tensor]
"""down [R, I] and up [O, R]: adapters add x down^T up^T to a product."""
Order = Callable[[Tensor], Tensor]
HAS_ONEDNN: bool = torch.backends.mkldnn.is_available() and hasattr(  # type: ignore[no-untyped-call]
    torch.ops.mkldnn, "_linear_pointwise"
)
PACKED_FOR_ROWS = 16
"""Rows that a packed weight is ordered for. Any number but 1 gives the same order, which any number can use."""


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


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of a configuration that the computation needs."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    """The base of the rotary frequencies."""

    @classmethod
    def of(cls, config: Any) -> Sizes:
        """Return the sizes of a configuration that `unsupported` has no objection to."""
        heads, hidden = config.num_attention_heads, config.hidden_size
        head_dim = getattr(config, "head_dim", None) or hidden // heads
        return cls(
            config.num_hidden_layers,
            hidden,
            heads,
            config.num_key_value_heads,
            head_dim,
            config.rms_norm_eps,
            rope_theta(config),
        )

    def rotations(self, length: int, device: torch.device | None = None) -> Tensor:
        """Return exp(i * position * frequency) as complex64 [length, head_dim / 2]."""
        exponent = torch.arange(0, self.head_dim, 2, dtype=torch.int64, device=device).float() / self.head_dim
        angle = torch.arange(length, device=device).float()[:, None] * (1.0 / (self.theta**exponent))[None]
        return torch.polar(torch.ones_like(angle), angle)

    def interleaved(self, weight: Tensor) -> Tensor:
        """Return the rows of each head in the order 0, d/2, 1, d/2 + 1, ...

        transformers rotates the pairs (i, i + d/2); a pair of neighbours is one complex product. Queries and keys are
        reordered alike, so every attention score stays as it was.
        """
        d = self.head_dim
        order = torch.arange(d, device=weight.device).view(2, d // 2).t().reshape(-1)
        return weight.view(-1, d, *weight.shape[1:]).index_select(1, order).reshape(weight.shape)

    def fused_qkv(self, attention: Any) -> Tensor:
        """Return the weight [(nq + 2 nkv) d, H] of queries, keys and values as one product."""
        q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
        return torch.cat([self.interleaved(q.weight), self.interleaved(k.weight), v.weight])

    def fused_bias(self, attention: Any) -> Tensor | None:
        """Return the bias [(nq + 2 nkv) d] of `fused_qkv`; None without one."""
        q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
        return None if q.bias is None else torch.cat([self.interleaved(q.bias), self.interleaved(k.bias), v.bias])

    def in_four_bits_qkv(self, attention: Any) -> InFourBits:
        """Return `fused_qkv` of weights in 4 bits, which stay as they are: outputs are reordered in their place."""
        layers = attention.q_proj, attention.k_proj, attention.v_proj
        places = torch.arange(sum(layer.out_features for layer in layers), device=layers[0].weight.device)
        q, k, v = places.tensor_split([self.heads * self.head_dim, (self.heads + self.kv_heads) * self.head_dim])
        return InFourBits([layer.weight for layer in layers], torch.cat([self.interleaved(q), self.interleaved(k), v]))

    def head_norms(self, attention: Any) -> tuple[Tensor | None, Tensor | None]:
        """Return the scales of the norms over each query's and each key's head; None in families without them."""
        if not hasattr(attention, "q_norm"):
            return None, None
        return self.interleaved(attention.q_norm.weight), self.interleaved(attention.k_norm.weight)


def unsupported(config: Any) -> str | None:
    """Return what a model of this configuration has that is not computed here; None if all of it is."""
    if config.model_type not in FAMILIES:
        return f"model type {config.model_type!r} (known: {', '.join(sorted(FAMILIES))})"
    if (activation := getattr(config, "hidden_act", "silu")) != "silu":
        return f"hidden_act {activation!r}"
    if getattr(config, "mlp_bias", False):
        return "mlp_bias"
    if rope_theta(config) is None:
        return f"scaled rotary positions ({getattr(config, 'rope_parameters', None)})"
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True):
        return f"sliding_window {window}"
    return None


def rope_theta(config: Any) -> Any:
    """Return the base of the rotary frequencies; None if they are scaled in a way that is not computed here."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        return None
    return rope.get("rope_theta", getattr(config, "rope_theta", None))


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


def _applies(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and HAS_ONEDNN
        and not torch.is_autocast_enabled("cpu")
    )
