"""Which weights of a policy get low-rank adapters, by names, and the sum of a weight and its adapters.

In transformers the experts of a mixture are parameters [experts, out, in] of one module, as `experts.gate_up_proj`;
`peft` wraps that module once for each parameter with adapters, which then has a pair of factors for each expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.models.routing import num_experts

NAME = "default"
BASE = ".base_layer"
"""The word that `peft` puts after a module's name in the names of its weights, once for each adapter around it."""


def chosen(model: Any, targets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of linear layers, and those of experts' parameters, that get adapters.

    `targets`: names, or their ends; none means all but the output layer and the routers of experts.
    Raises: ValueError naming those that are neither.
    """
    linear, num = _linear_layers(model), num_experts(model.config)
    # Parameters that hold a matrix for each expert.
    experts = [n for n, p in model.named_parameters() if p.dim() == 3 and num is not None and len(p) == num > 1]
    if not targets:
        apart = _apart(model)
        return [name for name in linear if name not in apart], sorted({_end(name, 2) for name in experts})
    known = sorted({_end(name, 1) for name in linear} | {_end(name, 2) for name in experts})
    for target in targets:
        if not any(_is(name, target) for name in (*linear, *experts)):
            raise ValueError(f"{target!r} is not there; there are {', '.join(known)}")
    layers = [t for t in targets if any(_is(name, t) for name in linear)]
    return layers, sorted(t for t in targets if any(_is(name, t) for name in experts))


def without_config(model: Any) -> torch.nn.Module:
    """Return a module with the model's own children, whose type cannot be told.

    Where `peft` knows the type of a mixture, it takes `gate_proj` of a linear layer for the experts' parameters, with
    another rank, and adds the router.
    """
    bare = torch.nn.Module()
    bare._modules = model._modules
    return bare


def frozen_base(model: Any) -> list[torch.nn.Parameter]:
    """Return the weights of a policy that its adapters leave as they are; none of a model without adapters."""
    has_adapters = any(hasattr(module, "lora_A") for module in model.modules())
    return [p for p in model.parameters() if not p.requires_grad] if has_adapters else []


def name_of(name: str, layer: Any) -> str:
    """Return the name, in the policy, of the frozen weight of the module with adapters that has this name."""
    key = getattr(layer, "parameter_name", "weight")
    while hasattr(layer, "base_layer"):
        name, layer = name + BASE, layer.base_layer
    return f"{name}.{key}"


def plain_name(name: str) -> str:
    """Return the name, in a plain model, of a weight or module of a model with adapters."""
    return name.replace(BASE, "")


def total(layer: Any, base: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the weight with its adapters, added in float32 or wider and rounded to the base's number type."""
    scale = layer.scaling[NAME]
    if base.dim() == 2:
        left, right = (a.t(), b.t()) if layer.fan_in_fan_out else (b, a)
        return torch.addmm(_wide(base), _wide(left), _wide(right), alpha=scale).to(base.dtype)
    out = torch.empty_like(base, memory_format=torch.contiguous_format)
    of_experts = a.reshape(len(base), -1, a.shape[1]), b.reshape(len(b), -1, len(base)).permute(2, 0, 1)
    is_turned = not layer._did_swap_in_out_features
    # An expert at a time: all of them in float32 are as large as a block.
    for weight, place, down, up in zip(base, out, *of_experts, strict=True):
        left, right = (down.t(), up.t()) if is_turned else (up, down)
        place.copy_(torch.addmm(_wide(weight), _wide(left), _wide(right), alpha=scale))
    return out


def _linear_layers(model: Any) -> list[str]:
    from transformers.pytorch_utils import Conv1D

    return [name for name, module in model.named_modules() if isinstance(module, (torch.nn.Linear, Conv1D))]


def _apart(model: Any) -> set[str]:
    """Return the names of linear layers that get no adapters unless they are named: output layer and routers."""
    modules, num = dict(model.named_modules()), num_experts(model.config)
    head = model.get_output_embeddings()
    routers = {
        name
        for name in _linear_layers(model)
        if num is not None and ("gate" in _end(name, 1) or "router" in name) and len(modules[name].weight) in (1, num)
    }
    return routers | {name for name, module in modules.items() if module is head}


def _end(name: str, num: int) -> str:
    return ".".join(name.split(".")[-num:])


def _is(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
