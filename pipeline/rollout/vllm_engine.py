"""vLLM inside this process: tokens in, tokens out; weights are copied from the trainer's module into vLLM's.

Every response names the version of the weights that drew it, and a wrong one is refused. Log-probs are float32, of the
distribution that was sampled: after temperature, top-k and top-p. A response depends on its own seed only, up to the
rounding of logits, which differs with the responses that are computed in the same step.
"""

from __future__ import annotations

import difflib
import gc
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pipeline.config.rollout import VllmConfig
from pipeline.errors import ConfigError, EngineError, boundary
from pipeline.rollout.engine import Completion, Ended, Listener, Request, Sampling, check_requests
from pipeline.rollout.vllm_records import NOTHING, Records, bounded, kept_tokens, prepare, routing
from pipeline.rollout.weights import Counted, Published, Weights, weights_of
from pipeline.types import FinishReason

if TYPE_CHECKING:
    from types import ModuleType

INSTALL = "pip install 'verizero[gpu]' on a GPU, `make install-engines` for the CPU (docs/engines.md)"
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine shares this process, and so the trainer's tensors
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer's threads live in this process too
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
TOKENS_A_STEP = 4096
ROOM = "the engine's room (rollout.vllm.max_model_tokens)"
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
    "weight_transfer_config": "rollout.vllm.transfer",
    "seed": "seed",
    "return_sampling_mask": "rl.algorithm.keep_sampling",
    "enable_return_routed_experts": "rl.algorithm.keep_routing",
}
"""Argument of vLLM's engine -> the recipe's field that decides it."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """The policy as an engine needs it."""

    model: Any
    eos_ids: tuple[int, ...]
    weights: Weights
    records: Records = NOTHING
    """The parts of its responses that the engine records."""

    @classmethod
    def of(
        cls, model: Any, eos_ids: Sequence[int], weights: Weights | None = None, records: Records = NOTHING
    ) -> EngineModel:
        """Describe the policy `model`; `weights` yields its weights if this process holds only a shard of them."""
        return cls(model, tuple(sorted(set(eos_ids))), weights or weights_of(model), records)

    def options(self, sampling: Sampling, seed: int) -> dict[str, Any]:
        """Return one response's options by vLLM's names."""
        options = sampling_options(sampling, seed, self.eos_ids)
        return options | (bounded(sampling, self.model.config.vocab_size) if self.records.sampling else {})

    @property
    def context(self) -> int | None:
        """The longest sequence in tokens; None if the model's config names none."""
        return getattr(self.model.config, "max_position_embeddings", None)


class VllmEngine:
    """Generates with vLLM in this process, which can have one such engine: vLLM's process groups are global."""

    is_fast: bool | None = None
    fallback_reason: str | None = None
    _live = 0

    def __init__(self, policy: EngineModel, config: VllmConfig, max_rows: int) -> None:
        """Start vLLM.

        Raises: ConfigError where vLLM is not installed or does not know an argument; EngineError if it does not start.
        """
        self.policy, self.config = policy, config
        self.published: Published | None = None
        self.version = -1
        self._num_asked = 0
        self._asleep = False
        if VllmEngine._live:
            raise EngineError("this process has one vLLM engine already; close it first")
        self._vllm = import_vllm()
        prepare(policy.records, self._vllm.why_no_records())
        check_arguments(config.arguments, self._vllm.argument_names())
        check_heads(policy.model.config, self._vllm.head_sizes())
        self.sleep_note = self._why_no_sleep()
        arguments = {**engine_arguments(policy, config, max_rows), **self._placed(max_rows), **config.arguments}
        self._folder = tempfile.TemporaryDirectory(prefix="verizero-engine-")
        # Asked before vLLM starts, because vLLM forms the default group if there is none.
        self._own_group = not torch.distributed.is_initialized()
        # vLLM needs the shape of the model only: the weights come with the first publish.
        with boundary(EngineError, "starting vLLM in this process"):
            policy.model.config.save_pretrained(self._folder.name)
            self._llm: Any = self._vllm.make_llm({**arguments, "model": self._folder.name})
        VllmEngine._live += 1
        self._mates = self._vllm.ranks_of_engine() if config.tensor_parallel > 1 else None
        self._limit = int(self._llm.llm_engine.model_config.max_model_len)

    def publish(self, version: int) -> None:
        """Copy the trainer's present weights into vLLM.

        Raises: EngineError if vLLM did not take all of them or keeps anything of the old ones.
        """
        start = time.perf_counter()
        weights = Counted(self.policy.weights())
        with boundary(EngineError, f"publishing weights of version {version} to vLLM"):
            self._wake("weights")
            # With this executor the workers live in this process, so the tensors themselves are passed, not copies.
            self._llm.collective_rpc("load_named", args=(weights,))
            engine = self._llm.llm_engine
            self._wake("kv_cache")
            # Cached keys and values are of the old weights: a response that used them would be drawn by both.
            if not engine.reset_prefix_cache():
                raise EngineError("vLLM kept its prefix cache, so old weights would be mixed with new; restart the run")
            engine.set_weight_version(str(version))
            self.version = int(engine.get_weight_version())
        self.published = Published("in place", time.perf_counter() - start, weights.num_bytes)

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, listener: Listener | None = None
    ) -> list[list[Completion]]:
        """Return, per request, one completion per seed; `listener` hears of each after the step in which it ended.

        Raises: EngineError for a prompt that leaves no room.
        """
        check_requests(requests, sampling.max_tokens, self._limit, ROOM)
        self._wake(None)
        engine, places = self._llm.llm_engine, {}
        made: dict[tuple[int, int], Completion] = {}
        with boundary(EngineError, "generating with vLLM"):
            # Ranks that share the engine must add equal requests in equal order, as they run its steps in lockstep.
            for i, request in self._requests_of_all_ranks(requests):
                # One request of vLLM's for each response: with its option `n`, vLLM would number the seeds itself.
                for j, seed in enumerate(request.seeds):
                    params = self._vllm.sampling_params(**self.policy.options(sampling, seed))
                    self._num_asked += 1
                    prompt = {"prompt_token_ids": list(request.prompt_ids)}
                    engine.add_request(str(self._num_asked), prompt, params)
                    if i is not None:
                        places[str(self._num_asked)] = (i, j)
            while engine.has_unfinished_requests():
                outs = [out for out in engine.step() if out.finished and out.request_id in places]
                done = {places[out.request_id]: self._completion(out, sampling) for out in outs}
                made.update(done)
                if done and listener is not None:
                    listener([Ended(i, j, c.token_ids, c.finish_reason) for (i, j), c in done.items()])
        return [[made[i, j] for j in range(len(r.seeds))] for i, r in enumerate(requests)]

    def rest(self) -> None:
        """Give the GPU's memory back until the next weights or prompts come; does nothing where vLLM has no sleep."""
        if self.sleep_note is None and not self._asleep:
            with boundary(EngineError, "putting vLLM to sleep"):
                # Level 1 keeps the weights in the CPU's memory: not every update is followed by a publish.
                self._llm.sleep(level=1)
            self._asleep = True

    def counts(self) -> Mapping[str, float]:
        """Return no numbers."""
        return {}

    def close(self) -> None:
        """Release vLLM's memory. The trainer's own process group stays: vLLM's shutdown would end it."""
        llm, self._llm = self._llm, None
        if llm is not None:
            if self._own_group:
                llm.llm_engine.engine_core.shutdown()
            del llm
            VllmEngine._live -= 1
            # vLLM's objects refer to each other in cycles, which would keep the GPU's memory.
            gc.collect()
            self._folder.cleanup()

    def _requests_of_all_ranks(self, requests: Sequence[Request]) -> list[tuple[int | None, Request]]:
        """Return the requests of all ranks that share this engine, in one order on all of them.

        Each comes with its index among this rank's requests, or None if it belongs to another rank.
        """
        if self._mates is None:
            return list(enumerate(requests))
        return [
            (i if rank == self._mates.rank else None, request)
            for rank, theirs in enumerate(self._mates.gather(list(requests)))
            for i, request in enumerate(theirs)
        ]

    def _completion(self, out: Any, sampling: Sampling) -> Completion:
        (answer,) = out.outputs
        drawn = tuple(answer.token_ids)
        rows = answer.logprobs or []
        # With `logprobs: 0` each row has the drawn token alone.
        logprobs = tuple(float(row[token].logprob) for row, token in zip(rows, drawn, strict=True))
        check_spans([(s.version, s.start, s.end) for s in answer.weight_versions or ()], str(self.version))
        sets = None if answer.sampling_mask is None else answer.sampling_mask.token_ids
        return Completion(
            drawn,
            logprobs,
            finish_reason(answer.finish_reason),
            kept_tokens(sets, drawn, sampling),
            routing(answer.routed_experts, len(out.prompt_token_ids), len(drawn), sampling),
        )

    def _why_no_sleep(self) -> str | None:
        if self._vllm.on_cpu():
            return "vLLM's CPU build has no sleep mode"
        return None if self.config.sleep else "rollout.vllm.sleep is off"

    def _placed(self, max_rows: int) -> dict[str, Any]:
        """Return the arguments of vLLM's engine that depend on the device and on the ranks."""
        placed = device_arguments(self.policy, self.config, max_rows, self._vllm.on_cpu())
        if not self._vllm.on_cpu():
            placed["enable_sleep_mode"] = self.sleep_note is None
        if self.config.tensor_parallel > 1:  # the ranks of the launched group are vLLM's workers
            placed["distributed_executor_backend"] = "external_launcher"
        return placed

    def _wake(self, tag: str | None) -> None:
        """Give `tag` ("weights", "kv_cache") or, for None, all its memory again, if the engine sleeps.

        A publish wakes the weights first and the cache at its end, when the trainer's gathered pieces are freed.
        """
        if self._asleep:
            self._llm.wake_up(None if tag is None else [tag])
            self._asleep = tag == "weights"  # the cache sleeps on


def import_vllm() -> ModuleType:
    """Return the module that imports vLLM. Raises: ConfigError naming what to install."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import pipeline.rollout.vllm_worker as worker
    except ImportError as exc:
        raise ConfigError(f"rollout.engine is vllm and vLLM does not import ({exc}); {INSTALL}") from exc
    return worker


def engine_arguments(policy: EngineModel, config: VllmConfig, max_rows: int) -> dict[str, Any]:
    """Return the arguments of vLLM's engine that a recipe decides, by vLLM's names."""
    longest = config.max_model_tokens or policy.context
    return {
        **({} if longest is None else {"max_model_len": longest}),
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "load_format": "dummy",  # random weights until the first publish
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # ignore the defaults for sampling in the model's own file
        "logprobs_mode": "processed_logprobs",
        "max_num_seqs": max_rows,
        "enforce_eager": config.enforce_eager,
        "tensor_parallel_size": config.tensor_parallel,
        "disable_log_stats": True,
        **policy.records.arguments,
        "worker_extension_cls": "pipeline.rollout.vllm_worker.WorkerExtension",
        "seed": 0,  # never used: each response has its own
    }


def device_arguments(policy: EngineModel, config: VllmConfig, max_rows: int, on_cpu: bool) -> dict[str, Any]:
    """Return the arguments of vLLM's engine that depend on the device.

    On the CPU a prompt is computed in one go: where a prompt is split over two steps, vLLM rewinds the random numbers
    of its seed, and its CPU build cannot.
    """
    if not on_cpu:
        return {"gpu_memory_utilization": config.gpu_memory_share}
    longest = config.max_model_tokens or policy.context or 0
    return {
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
            near = difflib.get_close_matches(name, known, 3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ConfigError(f"rollout.vllm.arguments.{name} is not an argument of vLLM's engine{hint}")


def check_heads(model_config: Any, sizes: Sequence[int] | None) -> None:
    """Raise ConfigError for attention heads of a size that vLLM's build cannot compute; vLLM itself finds it late."""
    heads = getattr(model_config, "num_attention_heads", None)
    size = getattr(model_config, "head_dim", None) or (model_config.hidden_size // heads if heads else None)
    if sizes is not None and size is not None and size not in sizes:
        raise ConfigError(
            f"the policy's attention heads have {size} numbers, and vLLM's CPU build computes "
            f"{', '.join(map(str, sizes))}; choose another number of heads, or rollout.engine: torch"
        )


def sampling_options(sampling: Sampling, seed: int, eos_ids: Sequence[int]) -> dict[str, Any]:
    """Return one response's options by vLLM's names. vLLM's own end token is ignored: any of `eos_ids` ends it."""
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
    """Raise EngineError unless all of a response was drawn by weights of `version`.

    spans: (version, first token, end) for each stretch of the response.
    """
    wrong = [s for s in spans if s[0] != version]
    if wrong or not spans:
        actual = "no version" if not spans else f"version {wrong[0][0]}"
        raise EngineError(
            f"a response was drawn by weights of {actual}, and version {version} was published; restart the run"
        )
