"""vLLM's arguments and sampling options by the recipe, its servers' command and variables, checks of its answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import ConfigError, EngineError
from verizero.pipeline.models.compiled import own_compile_threads
from verizero.pipeline.near import did_you_mean
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.vllm_records import choose_runner, recordable_options, recording_arguments
from verizero.pipeline.rollout.weights import ADAPTER_NUMBER
from verizero.pipeline.types import FinishReason

if TYPE_CHECKING:
    from types import ModuleType

INSTALL = "make install-gpu, or pip install '.[gpu]', on a GPU, `make install-engines` for the CPU (docs/engines.md)"
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine shares this process, and so the trainer's tensors
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer's threads live in this process too
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
Way = Literal["gloo", "nccl"]
SERVER_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # enables the routes for weights; the server listens on this machine only
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",  # and that for adapters
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several servers would bind their threads to the same cores
    "VLLM_NO_USAGE_STATS": "1",
}
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's argument `max_lora_rank`."""
NOWHERE = "as published"
"""vLLM wants a path of adapters. It reads none while it has those of that number."""
TOKENS_A_STEP = 4096
LONGEST_FIELD = "the engine's room (rollout.vllm.max_model_tokens)"
RECIPE_FIELDS = {
    "model": "model.path",
    "dtype": "model.dtype",
    "load_format": "nothing: weights come from the trainer",
    "skip_tokenizer_init": "nothing: tokens go in and out",
    "logprobs_mode": "nothing: log-probs are those of the distribution sampled",
    "max_model_len": "rollout.vllm.max_model_tokens",
    "max_num_seqs": "rollout.max_rows",
    "enforce_eager": "rollout.vllm.enforce_eager",
    "tensor_parallel_size": "rollout.vllm.tensor_parallel",
    "gpu_memory_utilization": "rollout.vllm.gpu_memory_share",
    "kv_cache_memory_bytes": "rollout.vllm.kv_cache_gib",
    "enable_sleep_mode": "rollout.vllm.sleep",
    "worker_extension_cls": "nothing: it takes the weights",
    "distributed_executor_backend": "nothing: it follows from the ranks",
    "weight_transfer_config": "rollout.vllm.transfer",
    "seed": "seed",
    "enable_lora": "train.lora",
    "max_loras": "train.lora",
    "max_lora_rank": "train.lora",
    "return_sampling_mask": "rl.algorithm.keep_sampling",
    "enable_return_routed_experts": "rl.algorithm.keep_routing",
}
"""Argument of vLLM's engine -> the recipe's field that decides it."""


def import_vllm() -> ModuleType:
    """Return the module that imports vLLM. Raises: ConfigError naming what to install."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        with own_compile_threads():
            import verizero.pipeline.rollout.vllm_worker as worker
    except ImportError as exc:
        raise ConfigError(f"rollout.engine is vllm and vLLM does not import ({exc}); {INSTALL}") from exc
    return worker


def checked_arguments(vllm: Any, policy: EngineModel, config: VllmConfig, max_rows: int) -> dict[str, Any]:
    """Return the arguments of vLLM's engine on this machine; `vllm`: the module that imports it.

    Raises: ConfigError for what this build of vLLM cannot do, and for an argument that it does not take.
    """
    choose_runner(policy.records, vllm.why_no_records())
    check_arguments(config.arguments, vllm.argument_names())
    check_heads(policy.model.config, vllm.head_sizes())
    return engine_arguments(policy, config, max_rows) | device_arguments(policy, config, max_rows, vllm.on_cpu())


def engine_arguments(policy: EngineModel, config: VllmConfig, max_rows: int) -> dict[str, Any]:
    """Return the arguments of vLLM's engine that a recipe decides, by vLLM's names."""
    longest = config.max_model_tokens or policy.longest
    return {
        **({} if longest is None else {"max_model_len": longest}),
        "dtype": str(policy.dtype).removeprefix("torch."),
        "load_format": "dummy",  # random weights until the first publish
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # ignore the defaults for sampling in the model's own file
        "logprobs_mode": "processed_logprobs",
        "max_num_seqs": max_rows,
        "tensor_parallel_size": config.tensor_parallel,
        **({} if policy.adapters is None else adapter_arguments(policy.adapters.config)),
        "disable_log_stats": True,
        **recording_arguments(policy.records),
        "worker_extension_cls": "verizero.pipeline.rollout.vllm_worker.WorkerExtension",
        "seed": 0,  # never used: each response has its own
    }


def device_arguments(policy: EngineModel, config: VllmConfig, max_rows: int, on_cpu: bool) -> dict[str, Any]:
    """Return the arguments of vLLM's engine that depend on the device.

    On the CPU a prompt is computed in one step: for a prompt in two steps vLLM must rewind the random numbers of its
    seed, which its CPU build cannot. Compiling takes minutes there and gains little; on GPUs a step without CUDA
    graphs waits for the CPU.
    """
    eager = on_cpu if config.enforce_eager is None else config.enforce_eager
    if not on_cpu:
        return {"gpu_memory_utilization": config.memory_share, "enforce_eager": eager}
    longest = config.max_model_tokens or policy.longest or 0
    return {
        "enforce_eager": eager,
        "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30),
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(TOKENS_A_STEP, longest, max_rows),
    }


def check_arguments(arguments: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise ConfigError for an argument that vLLM does not know, or that another field of the recipe decides."""
    known = set(known)
    for name in arguments:
        if name in RECIPE_FIELDS:
            raise ConfigError(f"rollout.vllm.arguments.{name}: drop it; it is decided by {RECIPE_FIELDS[name]}")
        if name not in known:
            hint = did_you_mean(name, known, "drop it")
            raise ConfigError(f"rollout.vllm.arguments.{name} is not an argument of vLLM's engine; {hint}")


def check_heads(model_config: Any, sizes: Sequence[int] | None) -> None:
    """Raise ConfigError for attention heads of a size that vLLM's build cannot compute; vLLM itself checks it late."""
    heads = getattr(model_config, "num_attention_heads", None)
    size = getattr(model_config, "head_dim", None) or (model_config.hidden_size // heads if heads else None)
    if sizes is not None and size is not None and size not in sizes:
        raise ConfigError(
            f"the policy's attention heads have {size} numbers, and vLLM's CPU build computes "
            f"{', '.join(map(str, sizes))}; choose another number of heads, or rollout.engine: torch"
        )


def options(policy: EngineModel, sampling: Sampling, seed: int) -> dict[str, Any]:
    """Return the options of one response of the policy, by vLLM's names."""
    of_seed = sampling_options(sampling, seed, policy.eos_ids)
    return of_seed | (recordable_options(sampling, policy.model.config.vocab_size) if policy.records.sampling else {})


def sampling_options(sampling: Sampling, seed: int, eos_ids: Sequence[int]) -> dict[str, Any]:
    """Return one response's options by vLLM's names. It ends with any of `eos_ids`; vLLM's own end token is ignored."""
    return {
        "n": 1,
        "seed": seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "logprobs": 0,
        "detokenize": False,
        "ignore_eos": True,
        "stop_token_ids": list(eos_ids),
    }


def finish_reason(reason: str | None) -> FinishReason:
    """Return vLLM's reason as ours. Raises: EngineError for a response that neither stopped nor reached its limit."""
    if reason == "stop":
        return "stop"
    if reason == "length":
        return "length"
    raise EngineError(
        f"vLLM ended a response with {reason!r} before it was finished; start the same command again, which continues "
        "the run, and if that happens again, look into vLLM's own log"
    )


def check_spans(spans: Sequence[tuple[str, int, int]], version: str) -> None:
    """Raise EngineError unless the whole response was drawn by weights of `version`.

    spans: (version, first token, end) for each part of the response.
    """
    wrong = [s for s in spans if s[0] != version]
    if wrong or not spans:
        actual = "no version" if not spans else f"version {wrong[0][0]}"
        raise EngineError(
            f"a response was drawn by weights of {actual}, and version {version} was published; restart the run"
        )


def adapter_arguments(config: Any) -> dict[str, Any]:
    """Return vLLM's arguments for adapters; `config`: peft's. Raises: ConfigError for a rank that it lacks."""
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
    if not of_workers or any(numbers != [ADAPTER_NUMBER] for numbers in of_workers):
        raise EngineError(
            f"{whose} has the adapters {of_workers} on its workers after number {ADAPTER_NUMBER} was "
            "published; restart it"
        )


def environments(config: VllmConfig, on_cpu: bool, num_seen: int) -> list[dict[str, str]]:
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
    return [{"CUDA_VISIBLE_DEVICES": visible(gpus, num_seen)} for gpus in config.devices]


def variables(more: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the variables of a server: this process's, those that every server has, and `more`."""
    merged = {**os.environ, **SERVER_ENVIRONMENT, **more}
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
