"""The Llama family (Llama, Mistral, Qwen2, Qwen3): sizes, fused weights and rotations that all members share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.models.cpu.frozen import InFourBits

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})


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
