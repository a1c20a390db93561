"""Quantised linear layers, in 4 bits by bitsandbytes, and AdamW with moments in 8 bits.

A frozen layer in NF4 keeps 4 bits of each weight and a scale of each 64, itself in 8 bits (arXiv:2305.14314, section
3); it computes with the numbers that these stand for, in the type of the weights that it was made from. This is the one
module that imports bitsandbytes.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.host.heap import trim_heap
from verizero.pipeline.models.load import absent
from verizero.pipeline.models.routing import num_experts
from verizero.pipeline.models.saved_names import sum_of_bits
from verizero.pipeline.models.streamed import weights_of

NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)
"""Bits of a weight in NF4, its share of the scales included: a scale of 8 bits, and of each 256 scales one of 32."""


@cache
def _library() -> Any:
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    # On some processors bitsandbytes asks the package `kernels` for a program of the hub, which nothing here does.
    with absent("kernels"):
        import bitsandbytes
    return bitsandbytes


def library(field: str) -> Any:
    """Return the package bitsandbytes, for the recipe's `field`. Raises: ConfigError if it does not import."""
    try:
        return _library()
    except ImportError as exc:
        raise ConfigError(
            f"{field} needs bitsandbytes, which does not import ({exc}); pip install '.[quantized]', or leave it out"
        ) from exc


class InBits:
    """Reads a frozen base onto a device, with its linear layers, but the output layer, in bits.

    They are read one by one, so no two of a base in files are in memory as numbers.
    """

    def __init__(self, model: Any, device: str) -> None:
        """Prepare to read `model`, which is whole or has its weights in files (`models.streamed`).

        It may get adapters before it is read. Raises: ConfigError for a mixture, whose experts are no linear layers.
        """
        if num_experts(model.config) is not None:
            raise ConfigError(
                f"model.quantize: model type {model.config.model_type!r} has experts, most of its weights, and they "
                "are no linear layers; drop model.quantize"
            )
        head = model.get_output_embeddings()
        linear = {name: m for name, m in model.named_modules() if type(m) is torch.nn.Linear and m is not head}
        if not linear:
            raise ConfigError(f"model.quantize: model type {model.config.model_type!r} has no linear layers; drop it")
        self.linear: dict[Tensor, str] = {m.weight: name for name, m in linear.items()}
        """Weights that will be bits, each with its layer's name; what was read is not there any more."""
        self.unread: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
        self.sums: dict[str, int] = {}
        """The sum of the bits of each weight that was read, as it was in the files, by its name without adapters."""
        self._device, self._files = device, weights_of(model)

    @torch.no_grad()
    def read(self, module: Any) -> Any:
        """Read what was not read yet of `module`, the model or a part of it, and return that."""
        for path in [path for path, _ in module.named_modules()]:
            layer = module.get_submodule(path)
            name = self.linear.pop(layer._parameters.get("weight"), None)
            for p in layer._parameters.values():
                if p in self.unread:
                    self._fill(p)
            layer._buffers.update({key: b if b is None else b.to(self._device) for key, b in layer._buffers.items()})
            if name is not None:
                parent, _, own = path.rpartition(".")
                setattr(module.get_submodule(parent), own, _in_4_bits(layer, self._device))
                # Else its numbers stay while the next ones are read: in a variable, or as a hole that has bits in it.
                del layer, p
                trim_heap()
        return module

    def _fill(self, p: Tensor) -> None:
        name = self.unread.pop(p)
        values = p if self._files is None else self._files.rows(name, slice(0, p.shape[0]))
        # A copy: a file's tensors are at odd addresses, where some products round differently.
        values = values.to(self._device, p.dtype, copy=True)
        self.sums[name] = int(sum_of_bits(values))
        # In place, as embeddings may be tied.
        torch.utils.swap_tensors(p, torch.nn.Parameter(values, requires_grad=False))  # type: ignore[no-untyped-call]


def _in_4_bits(linear: torch.nn.Linear, device: str) -> Any:
    nn, weight = library("model.quantize").nn, linear.weight.detach()
    made = nn.Linear4bit(
        linear.in_features, linear.out_features, linear.bias is not None, weight.dtype, quant_type="nf4", device="meta"
    )
    made.weight = nn.Params4bit(weight, requires_grad=False, quant_type="nf4", module=made).to(device)
    made.bias = linear.bias
    # On processors with bfloat16 it would pack itself for another product, less exact, in forwards without gradient.
    made.support_avx512bf16_for_cpu = False
    return made


def is_quantized(weight: Tensor) -> bool:
    """True if the weight is a quantised one."""
    return getattr(weight, "quant_state", None) is not None


def dense(weight: Any) -> Tensor:
    """Return the numbers [O, I] of a quantised weight, in the type it was made from; others unchanged."""
    if not is_quantized(weight):
        return weight  # type: ignore[no-any-return]
    made: Tensor = _library().functional.dequantize_4bit(weight.data, weight.quant_state)
    return made


def num_weights(weight: Any) -> int:
    """Return the number of weights; the tensor of quantised ones has another number of elements."""
    return int(weight.quant_state.shape.numel() if is_quantized(weight) else weight.numel())


def sharing(weights: list[Any]) -> dict[int, Any]:
    """Return the memo of a `copy.deepcopy` whose copy holds these very weights."""
    states = [weight.quant_state for weight in weights if hasattr(weight, "quant_state")]
    return {id(x): x for x in (*weights, *states)}


def divisible(model: Any) -> None:
    """Make a model's quantised weights plain tensors of bits, as ranks divide them; their layers keep the rest.

    That is scales and shapes, of which each rank has all. A weight gets them back when its bits have been gathered.
    """
    for layer in model.modules():
        weight = layer._parameters.get("weight")
        if weight is not None and is_quantized(weight):
            with_rest(layer, weight)
            layer.weight = torch.nn.Parameter(weight.data.as_subclass(Tensor), requires_grad=False)
            layer.register_forward_pre_hook(_with_own_rest)


def with_rest(bits: Any, owner: Any) -> Any:
    """Copy scales and shape from `owner`, a quantised weight or its layer, to `bits`, and return these."""
    if (state := getattr(owner, "quant_state", None)) is not None:
        bits.quant_state = state
    return bits


def _with_own_rest(layer: Any, _: Any) -> None:
    with_rest(layer.weight, layer)
