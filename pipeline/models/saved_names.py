"""Name weights as in a saved folder, layer by layer; make modules on `meta`, and fill them with weights.

And the fingerprint of a model's weights, which may be read a few at a time.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def as_saved(model: Any, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return some of the model's weights, given by its own names, named and shaped as `save_pretrained` writes them.

    Experts that the model holds in one tensor become a tensor each. Tensors may be the model's own.
    """
    from transformers.core_model_loading import revert_weight_conversion

    with torch.no_grad():
        saved: dict[str, Tensor] = revert_weight_conversion(model, dict(own))
    return saved


def pieces(names: Iterable[str]) -> list[list[str]]:
    """Return the names in lists, in order: one list for each layer, and one for each name that belongs to no layer.

    A layer's weights stay together because its saved tensors may be made of several of its own.
    """
    out: list[list[str]] = []
    last: str | None = None
    for name in names:
        layer = _layer(name)
        if layer is None or layer != last:
            out.append([])
        out[-1].append(name)
        last = layer
    return out


def _layer(name: str) -> str | None:
    """Return the part of a name up to its first number, e.g. model.layers.3; None without a number.

    Without a number, the weight of a layer and its adapters (LoRA) have the layer's name.
    """
    parts = name.split(".")
    numbers: Sequence[int] = [i for i, part in enumerate(parts) if part.isdigit()]
    if numbers:
        return ".".join(parts[: numbers[0] + 1])
    ends = [i for i, part in enumerate(parts) if part in ("base_layer", "lora_A", "lora_B")]
    return ".".join(parts[: ends[0]]) if ends else None


def on_meta(maker: Any, settings: Any, dtype: torch.dtype) -> Any:
    """Return `maker.from_config(settings)`: parameters on `meta`, buffers as the architecture computes them."""
    with torch.device("meta"):
        model = maker.from_config(settings, dtype=dtype)
    for module in model.modules():
        own = {name: b for name, b in module._buffers.items() if b is not None}
        for name, b in own.items():
            module._buffers[name] = torch.zeros_like(b, device="cpu")
        if own:
            # Frequencies of rotary positions, for example, are in no file.
            model._init_weights(module)
    return model.eval()


def without_memory(model: Any) -> Any:
    """Return a copy of the module whose parameters are on the device `meta`; buffers are copied, ties stay."""
    empty = {
        id(p): torch.nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
        for p in model.parameters()
    }
    return copy.deepcopy(model, empty)  # deepcopy takes these for copies that it has made already


def filled(empty: Any, weights: Iterable[tuple[str, Tensor]], device: torch.device) -> Any:
    """Return a module like `empty` with copies of these weights, by its own names, on `device`."""
    model = copy.deepcopy(empty)
    own = dict(model.named_parameters())
    made: dict[int, torch.nn.Parameter] = {}
    for name, weight in weights:
        place = own[name]
        tensor = weight.detach().to(device, copy=True)
        made[id(place)] = torch.nn.Parameter(tensor, requires_grad=place.requires_grad)
    for module in model.modules():
        for key, p in module._parameters.items():
            if p is not None:
                module._parameters[key] = made[id(p)]
    return model.to(device)


AT_ONCE = 1 << 17
"""Numbers that are summed at once: torch makes int64 of all that it is given."""


def fingerprint(model: Any) -> str:
    """Return a hash of the names, shapes and bits of a model's weights, which differs for another model."""
    return hashed((name, p.shape, int(sum_of_bits(p))) for name, p in model.named_parameters())


def sum_of_bits(weight: Tensor) -> Tensor:
    """Return the sum of the bits of each number, modulo 2^64, as int64. Sums of a weight's rows add up to its own."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    numbers = weight.detach().contiguous().view(-1).view(kinds[weight.element_size()])
    # In one buffer: memory of its own for each part can leave holes in the heap, as many as the weight has parts.
    wide = torch.empty(min(AT_ONCE, len(numbers)), dtype=torch.int64, device=numbers.device)
    total = torch.zeros((), dtype=torch.int64, device=numbers.device)
    for part in torch.split(numbers, AT_ONCE):
        total += wide[: len(part)].copy_(part).sum()
    return total


def hashed(sums: Iterable[tuple[str, Sequence[int], int]]) -> str:
    """Return the fingerprint of a model whose weights have these names, shapes and sums of bits."""
    words = [f"{name} {tuple(shape)} {total}" for name, shape, total in sums]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()
