"""The command line and the variables of a server of vLLM."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import ConfigError

Way = Literal["gloo", "nccl", "ipc", "folder"]
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # enables the routes for weights; the server listens on this machine only
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",  # and that for adapters
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several servers would bind their threads to the same cores
    "VLLM_NO_USAGE_STATS": "1",
}


def environments(config: VllmConfig, way: Way, on_cpu: bool, num_seen: int) -> list[dict[str, str]]:
    """Return the environment variables of each server that a run starts; `num_seen`: the GPUs that rank 0 sees.

    Raises: ConfigError if there are GPUs and the recipe names none for the servers, or if it names GPUs without any.
    """
    if on_cpu:
        if config.devices:
            raise ConfigError("rollout.vllm.devices names GPUs, and vLLM's build here is the CPU's; drop it")
        return [{} for _ in range(config.servers)]
    if not config.devices:
        raise ConfigError(
            f"rollout.vllm.devices is empty, so the {config.servers} servers would start on GPU 0 next to rank 0; name "
            "the GPUs of each, e.g. devices: [[6], [7]], beyond those of launch.gpus_per_node"
        )
    # IPC handles come pickled. The server listens on this machine alone.
    more = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"} if way == "ipc" else {}
    return [{"CUDA_VISIBLE_DEVICES": visible(gpus, num_seen), **more} for gpus in config.devices]


def variables(more: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the variables of a server: this process's, those that every server has, and `more`."""
    merged = {**os.environ, **ENVIRONMENT, **more}
    merged.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)  # set for an engine in this process only
    return merged


def visible(devices: Sequence[int], num_seen: int, environment: Mapping[str, str] = os.environ) -> str:
    """Return CUDA_VISIBLE_DEVICES of a server on these GPUs, which are numbered as this process sees them.

    `num_seen`: how many this process sees. Raises: ConfigError for one that it does not see.
    """
    names = environment.get("CUDA_VISIBLE_DEVICES", "")
    seen = [name.strip() for name in names.split(",")] if names.strip() else [str(i) for i in range(num_seen)]
    if missing := [gpu for gpu in devices if gpu >= len(seen)]:
        raise ConfigError(
            f"rollout.vllm.devices names GPU {missing[0]}, and rank 0 sees {len(seen)} "
            + (f"(CUDA_VISIBLE_DEVICES={names})" if names else "on this machine")
            + "; name GPUs below that number, or start rank 0 where it sees those of the servers too"
        )
    return ",".join(seen[gpu] for gpu in devices)


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Return the arguments of vLLM's engine as options of its command line."""
    out: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            out.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            text = json.dumps(value) if isinstance(value, dict | list | tuple) else str(value)
            out += [f"--{flag}", text]
    return out
