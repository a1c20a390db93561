"""Faster arithmetic for small models on the CPU. The model is understood without it: other modules import only this.

- `blocks_of` is the switch of the training forward: it says whether our own blocks take the place of transformers'.
- `decoder_of` is the same for generation, on any device.
- `product`, `linear` and `use_onednn` multiply float32 matrices on the CPU with oneDNN, and leave all else to torch.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from verizero.pipeline.models.cpu.blocks import Blocks
from verizero.pipeline.models.cpu.cache import room_of
from verizero.pipeline.models.cpu.decoder import Decoder, check_parity, habits_of
from verizero.pipeline.models.cpu.llama import unsupported
from verizero.pipeline.models.cpu.onednn import HAS_ONEDNN, FastLinear, linear, product, transposed, use_onednn
from verizero.pipeline.models.proof import agree, evaluating, probe_ids

__all__ = [
    "Blocks",
    "Decoder",
    "FastLinear",
    "blocks_of",
    "check_parity",
    "habits_of",
    "linear",
    "product",
    "room_of",
    "transposed",
    "unsupported",
    "use_onednn",
]

_BLOCKS: weakref.WeakKeyDictionary[Any, Blocks | None] = weakref.WeakKeyDictionary()


def blocks_of(model: Any) -> Blocks | None:
    """Return blocks that compute a training forward of `model`; None if transformers' own are to be used.

    The model must be of a known family, in float32 on the CPU, with nothing attached to its modules; that is looked at
    in each call. That both compute the same is proved once for each model: a configuration may promise less than the
    model does.
    """
    if not _is_plain(model):
        return None
    if model not in _BLOCKS:
        blocks = Blocks(model) if HAS_ONEDNN and unsupported(model.config) is None else None
        _BLOCKS[model] = blocks if blocks is not None and _agrees(model, blocks) else None
    return _BLOCKS[model]


def _agrees(model: Any, blocks: Blocks) -> bool:
    ids = probe_ids(model, 3, 8)
    with evaluating(model):
        wanted = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return agree(model, blocks.hidden_states(model, ids), wanted)


def _is_plain(model: Any) -> bool:
    """True if the weights are float32 on the CPU and nothing changes their use: no adapters, hooks or dropout."""
    if model.dtype != torch.float32 or model.device.type != "cpu":
        return False
    if getattr(model, "is_gradient_checkpointing", False):
        return False
    if model.training and getattr(model.config, "attention_dropout", 0.0):
        return False
    for module in model.modules():
        if hasattr(module, "lora_A") or "forward" in vars(module):  # the latter: compiled
            return False
        if isinstance(module, nn.Linear) and type(module) not in (nn.Linear, FastLinear):
            return False
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return False
    return True
