"""Choose what a recipe leaves to the machine: the backend, the number type and the engine that are `auto`."""

from __future__ import annotations

import importlib.util
from typing import Any

from verizero.pipeline.config.run import RunConfig


def for_machine(config: RunConfig, num_ranks: int, device: str, has_vllm: bool | None = None) -> RunConfig:
    """Return the recipe with a choice in place of each `auto`.

    On the CPU: torch's backend, float32, the embedded engine. On GPUs: FSDP for several ranks, bfloat16, and vLLM in
    the training process for a model that the recipe does not make; each only where the recipe's other fields allow it.
    `has_vllm`: None to look whether it is installed.
    """
    on_gpu = device.startswith("cuda")
    if config.train.backend == "auto":
        fsdp = with_changes(config, "train", backend="fsdp")
        # The embedded engine needs the bits of a quantised base whole; torch's backend computes with the same ones.
        is_whole = config.model.quantize is not None and config.rollout.engine in ("auto", "torch")
        divides = num_ranks > 1 and on_gpu and not is_whole and is_allowed(fsdp)
        config = fsdp if divides else with_changes(config, "train", backend="torch")
    if config.model.dtype == "auto":
        half = with_changes(config, "model", dtype="bfloat16")
        config = half if on_gpu and is_allowed(half) else with_changes(config, "model", dtype="float32")
    if config.rollout.engine == "auto":
        vllm = with_changes(config, "rollout", engine="vllm")
        # The embedded engine computes with the trainer's own bits; vLLM has them a second time.
        takes_vllm = on_gpu and config.model.create is None and config.model.quantize is None and is_allowed(vllm)
        if takes_vllm and has_vllm is None:
            has_vllm = importlib.util.find_spec("vllm") is not None
        config = vllm if takes_vllm and has_vllm else with_changes(config, "rollout", engine="torch")
    return config


def is_allowed(config: RunConfig) -> bool:
    """True if the sections of the recipe fit together."""
    try:
        config.check()
    except ValueError:
        return False
    return True


def with_changes(config: RunConfig, section: str, **changes: Any) -> RunConfig:
    """Return the recipe with other values of fields of a section."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=changes)})
