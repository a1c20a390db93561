"""Attentions of ours in transformers: a model looks one up by its name, and has its own where a forward names none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments of attentions that add something which is not computed here."""


def enable(model: Any, name: str, attention: Callable[..., Any]) -> None:
    """Make the model attend by `attention`, under that name.

    Raises: ValueError, AttributeError if transformers cannot set the model's attention.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    model.set_attn_implementation(name)


def plain(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **named: Any
) -> tuple[Tensor, None]:
    """Attend as transformers' scaled dot product attention does: query [B, heads, t, D], result [B, t, heads, D]."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    attended: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **named)
    return attended


def unsupported(named: Mapping[str, Any]) -> str | None:
    """Return the first of an attention's arguments that adds something which is not computed here; None: none does."""
    return next((name for name in UNSUPPORTED if named.get(name) is not None), None)
