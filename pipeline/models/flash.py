"""Flash attention of the packages that transformers knows, by the arguments of torch's `varlen_attn`.

transformers has one call for all of them, with the lengths of the pieces; it chooses the function by its name for it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError

LOCAL_KERNELS = "LOCAL_KERNELS"
"""Variable of the package `kernels`: repository=folder:repository=folder, kernels of the hub that are files here."""
OF_HUB = tuple(
    f"kernels-community/{name}" for name in ("flash-attn4", "flash-attn3", "vllm-flash-attn3", "flash-attn2")
)


def installed(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return transformers' name of the flash attention to use; None if there is none.

    A kernel of the hub that LOCAL_KERNELS names, else the newest package that is installed. Nothing is downloaded: the
    hub may have another build of a kernel tomorrow, and a run that continues would have other bytes.
    """
    from transformers import modeling_flash_attention_utils as flash

    named = {entry.partition("=")[0] for entry in environment.get(LOCAL_KERNELS, "").split(":")}
    local = next((name for name in OF_HUB if name in named), None)
    packages = (f"flash_attention_{n}" for n in (4, 3, 2) if getattr(flash, f"is_flash_attn_{n}_available")())
    return local or next(packages, None)


def varlen_attn(name: str) -> Any:
    """Return a function with the arguments of torch's `varlen_attn`, which that flash attention computes.

    Raises: ConfigError if it cannot be deterministic and torch is told to be; whatever loading it raises.
    """
    from transformers.modeling_flash_attention_utils import _flash_attention_forward, lazy_import_flash_attention

    function = lazy_import_flash_attention(name)[0][1]
    if torch.are_deterministic_algorithms_enabled() and "deterministic" not in inspect.signature(function).parameters:
        raise ConfigError("its backward has no fixed order of sums, and train.deterministic is true")

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *ends: Any,
        scale: float | None,
        window_size: tuple[int, int],
        enable_gqa: bool = False,
    ) -> Tensor:
        """See torch; `enable_gqa` is not read, because flash attention sees that queries share keys."""
        cu_seq_q, cu_seq_k, max_q, max_k = ends
        out: Tensor = _flash_attention_forward(
            query[None],
            key[None],
            value[None],
            None,
            query_length=len(query),
            is_causal=True,
            softmax_scale=scale,
            sliding_window=window_size[0] + 1 if window_size[0] >= 0 else None,  # transformers counts the token itself
            deterministic=torch.are_deterministic_algorithms_enabled(),
            cu_seq_lens_q=cu_seq_q,
            cu_seq_lens_k=cu_seq_k,
            max_length_q=max_q,
            max_length_k=max_k,
            attn_implementation=name,
        )
        return out[0]

    return attend
