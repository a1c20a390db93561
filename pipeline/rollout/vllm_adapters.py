"""Adapters in vLLM: it gets their base once, and then at each publish the adapters alone, in place of the last ones."""

from __future__ import annotations

from typing import Any

from verizero.pipeline.errors import ConfigError, EngineError

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's argument `max_lora_rank`."""
NAME, NUMBER = "policy", 1
"""The name and the number of the adapters in vLLM."""
IN_BITS = "verizero_bits"
"""vLLM's name for a base in bits, which `vllm_quantized` computes."""
NOWHERE = "as published"
"""vLLM wants a path of adapters. It reads none while it has those of that number."""


def adapter_arguments(config: Any) -> dict[str, Any]:
    """Return the arguments of vLLM's engine for adapters; `config`: peft's.

    Raises: ConfigError for a rank that vLLM does not compute.
    """
    if config.r > RANKS[-1]:
        raise ConfigError(
            f"train.lora.rank={config.r}, and vLLM computes adapters of at most {RANKS[-1]}; lower it, or set "
            "rollout.engine: torch"
        )
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": next(r for r in RANKS if r >= config.r)}


def settings_of(config: Any) -> dict[str, Any]:
    """Return what vLLM reads of peft's configuration, in a form that JSON has."""
    return {
        "peft_type": "LORA",
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "target_modules": sorted(config.target_modules),
        "bias": config.bias,
    }


def check_adapters(of_workers: Any, whose: str) -> None:
    """Raise EngineError unless each worker reports the published adapters and no others; `whose` begins the message."""
    if not of_workers or any(numbers != [NUMBER] for numbers in of_workers):
        raise EngineError(
            f"{whose} has the adapters {of_workers} on its workers after number {NUMBER} was published; restart it"
        )
