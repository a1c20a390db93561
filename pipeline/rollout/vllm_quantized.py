"""A quantised base in vLLM: its linear layers keep the trainer's bits, and make the same numbers of them.

vLLM computes several layers of the model as one, such as those of queries, keys and values: a layer here has the bits
of all of them, one after the other, and makes their numbers by turns. Importing this module makes it known to vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from verizero.pipeline.models.quantized import NF4, from_bits, library, num_bytes
from verizero.pipeline.rollout.vllm_adapters import IN_BITS

PLAIN = "plain"
"""The kind of a layer that is not quantised, while vLLM computes it together with one that is."""


@register_quantization_config(IN_BITS)
class BitsConfig(QuantizationConfig):  # type: ignore[misc, unused-ignore]
    """The way in which each layer of a base is kept."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        """`kinds`: layer, by its name in a saved folder -> how its weight is kept (`quantized.InBits.kinds`)."""
        super().__init__()
        self.kinds = dict(kinds)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> BitsConfig:
        """Read what `vllm_arguments.save_shape` wrote."""
        return cls(config["kinds"])

    def get_name(self) -> str:
        """Return vLLM's name for such a base."""
        return IN_BITS

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """Return the types of the tokens' numbers that the layers multiply."""
        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        """Return the oldest GPUs that compute it: any."""
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Return the files that are read next to config.json: none."""
        return []

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        """Give the layers the names that they have in vLLM's model."""
        self.kinds = hf_to_vllm_mapper.apply_dict(self.kinds)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        """Return what computes a layer of vLLM's model; None for those that are not linear."""
        if not isinstance(layer, LinearBase):
            return None
        start, _, own = prefix.rpartition(".")
        names = [f"{start}.{part}" for part in self.packed_modules_mapping.get(own, ())]
        if prefix in self.kinds or not names:
            names = [prefix]
        kinds = [self.kinds.get(name, PLAIN) for name in names]
        return UnquantizedLinearMethod() if set(kinds) == {PLAIN} else BitsMethod(kinds)


class BitsMethod(LinearMethodBase):  # type: ignore[misc, unused-ignore]
    """A product with weights that are made of bits each time."""

    def __init__(self, kinds: list[str]) -> None:
        """`kinds`: of the layers of the model that one of vLLM's computes, in order."""
        self.kinds = kinds
        if NF4 in kinds:
            library("model.quantize=nf4")

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Make room for the bits of the layer."""
        outputs = output_partition_sizes if len(self.kinds) > 1 else [sum(output_partition_sizes)]
        shapes = [torch.Size([size, input_size]) for size in outputs]
        parts = zip(self.kinds, shapes, strict=True)
        sizes = [s.numel() * params_dtype.itemsize if k == PLAIN else num_bytes(k, s) for k, s in parts]
        weight = torch.nn.Parameter(torch.zeros(sum(sizes), dtype=torch.uint8), requires_grad=False)
        weight.weight_loader = _Loader(sizes, params_dtype)  # type: ignore[attr-defined]
        layer.register_parameter("weight", weight)
        layer.verizero_parts = list(zip(self.kinds, shapes, sizes, strict=True))  # type: ignore[assignment]

    def apply(self, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x [..., I] times the numbers, [..., O], and the bias."""
        parts: Any = layer.verizero_parts
        bits = torch.split(layer.weight, [size for _, _, size in parts])  # type: ignore[arg-type]
        outs = [F.linear(x, _numbers(b, k, s, x.dtype)) for b, (k, s, _) in zip(bits, parts, strict=True)]
        out = outs[0] if len(outs) == 1 else torch.cat(outs, -1)
        return out if bias is None else out + bias


def _numbers(bits: Tensor, kind: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    # a copy, because numbers must not begin at any byte
    return bits.clone().view(dtype).view(shape) if kind == PLAIN else from_bits(bits, kind, shape, dtype)


class _Loader:
    """Copies the bits of a layer of the model to their place among those that vLLM computes as one."""

    __name__ = "bits_loader"  # vLLM asks for it

    def __init__(self, sizes: list[int], dtype: torch.dtype) -> None:
        self.sizes, self.dtype = sizes, dtype

    def __call__(self, param: Tensor, loaded_weight: Tensor, loaded_shard_id: int | str | None = None) -> None:
        """Copy `loaded_weight`; `loaded_shard_id`: q, k or v, or the layer's number, where there are several."""
        number = loaded_shard_id if isinstance(loaded_shard_id, int) else "qkv".index(loaded_shard_id or "q")
        bits = loaded_weight if loaded_weight.dtype == torch.uint8 else loaded_weight.to(self.dtype).view(torch.uint8)
        torch.split(param.data, self.sizes)[number].copy_(bits.flatten())
