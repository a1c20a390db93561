"""vLLM's arguments and sampling options by the recipe, and checks of vLLM's answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import ConfigError, EngineError
from verizero.pipeline.models.compiled import own_compile_threads
from verizero.pipeline.near import did_you_mean
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.vllm_adapters import IN_BITS, adapter_arguments
from verizero.pipeline.rollout.vllm_records import recordable_options, recording_arguments
from verizero.pipeline.types import FinishReason

if TYPE_CHECKING:
    from types import ModuleType

INSTALL = (
    "make install-gpu, or pip install 'verizero[gpu]', on a GPU, `make install-engines` for the CPU (docs/engines.md)"
)
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine shares this process, and so the trainer's tensors
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer's threads live in this process too
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
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
    "quantization": "rollout.vllm.quantization",
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


def save_shape(policy: EngineModel, folder: str) -> None:
    """Write the configuration of the policy, and of its base's bits, from which vLLM makes a model without weights."""
    policy.model.config.save_pretrained(folder)
    kinds = {} if policy.adapters is None else dict(policy.adapters.kinds)
    if kinds:
        file = Path(folder) / "config.json"
        more = {"quantization_config": {"quant_method": IN_BITS, "kinds": kinds}}
        file.write_text(json.dumps(json.loads(file.read_text()) | more))


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
        **({} if config.quantization is None else {"quantization": config.quantization}),
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
    graphs waits for the CPU. Raises: ConfigError for what vLLM's CPU build cannot compute.
    """
    eager = on_cpu if config.enforce_eager is None else config.enforce_eager
    if not on_cpu:
        return {"gpu_memory_utilization": config.memory_share, "enforce_eager": eager}
    if config.quantization is not None:
        raise ConfigError(
            f"rollout.vllm.quantization={config.quantization}: vLLM's CPU build has no such kernels; drop it here"
        )
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
    raise EngineError(f"vLLM ended a response with {reason!r}; it was not finished, and the run cannot use it")


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
