"""The most that a device allows, from its measured ceilings: a copy, matrix products, and a step of decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from verizero.pipeline.checks.plan.devices import decode_seconds


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The most that a device was measured to do."""

    bytes_per_s: float
    """The rate of a copy, bytes read and bytes written together."""
    flops: dict[torch.dtype, float]
    """Operations per second of a large matrix product, by the type of its numbers."""


def ceilings(device: torch.device, copy_bytes: int = 1 << 30, size: int = 8192, times: int = 10) -> Ceilings:
    """Measure a copy of `copy_bytes` and products of [size, size] matrices in bfloat16 and float32.

    float32 products are without TF32, as torch computes them by default.
    """
    source = torch.empty(copy_bytes // 4, device=device)
    target = torch.empty_like(source)
    copied = 2 * 4 * source.numel() / seconds(lambda: target.copy_(source), device, times)
    flops = {}
    for dtype in (torch.bfloat16, torch.float32):
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        flops[dtype] = 2 * size**3 / seconds(lambda a=a, b=b: a @ b, device, times)
    return Ceilings(copied, flops)


def seconds(work: Any, device: torch.device, times: int = 1, warm: int = 1) -> float:
    """Return the mean seconds of a call of `work` over `times` calls, after `warm` calls that are not counted.

    On a GPU it waits for the kernels before and after: without that, only their launch is timed.
    """
    import time

    for _ in range(warm):
        work()
    wait(device)
    begin = time.perf_counter()
    for _ in range(times):
        work()
    wait(device)
    return (time.perf_counter() - begin) / times


def wait(device: torch.device) -> None:
    """Return once the device has done all that was asked of it; the CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def weight_bytes(model: Any) -> int:
    """Return the bytes of the model's weights, tied ones once."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def cache_bytes_per_token(config: Any, width: int) -> int:
    """Return the bytes of keys and values of one token in all layers, in numbers of `width` bytes."""
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * kv_heads * head * width)


def decode_bound_s(model: Any, rows: int, cached: float, most: Ceilings) -> float:
    """Return the least seconds of one decode step of `rows` rows that have `cached` tokens each on average.

    The plan's bound, with measured ceilings in place of a data sheet's.
    """
    num = sum(p.numel() for p in model.parameters())
    flops = most.flops.get(model.dtype, most.flops[torch.float32])
    cache = cache_bytes_per_token(model.config, model.dtype.itemsize)
    return decode_seconds(weight_bytes(model), rows, cached, cache, most.bytes_per_s, 2 * num * rows / flops)
