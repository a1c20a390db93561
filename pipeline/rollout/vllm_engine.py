"""vLLM inside this process: tokens in, tokens out; weights are copied from the trainer's module into vLLM's.

Every response names the version of the weights that drew it, and a wrong one is refused. Log-probs are float32, of the
distribution that was sampled: after temperature, top-k and top-p. A response depends on its own seed only, up to the
rounding of logits, which differs with the responses that are computed in the same step.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch

from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import ConfigError, EngineError, boundary
from verizero.pipeline.models.strictness import turn
from verizero.pipeline.rollout.engine import Completion, Ended, EndedReader, Request, Sampling, check_requests
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.vllm_arguments import (
    LONGEST_FIELD,
    NOWHERE,
    check_adapters,
    check_spans,
    checked_arguments,
    finish_reason,
    import_vllm,
    options,
    settings_of,
)
from verizero.pipeline.rollout.vllm_records import kept_tokens, routing
from verizero.pipeline.rollout.weights import ADAPTER_NAME, ADAPTER_NUMBER, CountedWeights

SleepLevel = Literal[1, 2]
"""1: while vLLM sleeps, its weights are in the CPU's memory; 2: it drops them, and they are sent again."""


class VllmEngine:
    """Generates with vLLM in this process, which can have one such engine: vLLM's process groups are global."""

    is_fast: bool | None = None
    fallback_reason: str | None = None
    answers_threads = False
    _live = 0

    def __init__(self, policy: EngineModel, config: VllmConfig, max_rows: int, vllm: Any = None) -> None:
        """Start vLLM, and let it sleep until the first publish. All ranks must do this at the same time.

        `vllm`: the module that imports vLLM; None: ours.
        Raises: ConfigError if vLLM is not installed or does not know an argument; EngineError if it does not start.
        """
        # The base of adapters comes only once.
        self._sleep_level: SleepLevel = 2 if policy.adapters is None else 1
        self.policy, self.config = policy, config
        self._num_bytes: int | None = None
        self.version = -1
        self._num_requests = 0
        self._asleep = False
        if VllmEngine._live:
            raise EngineError("this process has one vLLM engine already; close it first")
        self._vllm = vllm or import_vllm()
        arguments = checked_arguments(self._vllm, policy, config, max_rows)
        self.sleep_note = self._why_no_sleep()
        named = ADAPTER_NAME, ADAPTER_NUMBER, NOWHERE  # a number stands for the same adapters always
        self._lora_request = None if policy.adapters is None else self._vllm.LoRARequest(*named)
        """Named in each request for a response."""
        arguments |= self._arguments_of_ranks() | config.arguments
        self._folder = tempfile.TemporaryDirectory(prefix="verizero-engine-")
        # Checked before vLLM starts, because vLLM forms the default group if there is none.
        self._own_group = not torch.distributed.is_initialized()
        # vLLM needs the shape of the model only, as the weights come with the first publish.
        with boundary(EngineError, "starting vLLM in this process"):
            policy.model.config.save_pretrained(self._folder.name)
            with local_rank_of(policy.model.device, self._vllm.on_cpu()), turn("unswitched"):
                self._llm: Any = self._vllm.make_llm({**arguments, "model": self._folder.name})
        VllmEngine._live += 1
        self._engine_ranks = self._vllm.ranks_of_engine() if config.tensor_parallel > 1 else None
        self._limit = int(self._llm.llm_engine.model_config.max_model_len)
        self.rest()  # its weights are random, and the trainer's first computations may need the room

    def publish(self, version: int) -> None:
        """Copy the present weights into vLLM. Raises: EngineError if it did not take all or keeps old ones."""
        adapters = self.policy.adapters
        weights = CountedWeights(self.policy.published(with_base=self.version < 0))
        with boundary(EngineError, f"publishing weights of version {version} to vLLM"):
            self._wake("weights")
            engine = self._llm.llm_engine
            # With this executor the workers live in this process, so the tensors themselves are passed, not copies.
            self._llm.collective_rpc("load_named", args=(weights,))
            if adapters is not None:
                check_adapters(self._llm.collective_rpc("put_adapters", args=(settings_of(adapters.config),)), "vLLM")
            self._wake("kv_cache")
            # Cached keys and values are of the old weights: a response that used them would be drawn by both.
            if not engine.reset_prefix_cache():
                raise EngineError("vLLM kept its prefix cache, so old weights would be mixed with new; restart the run")
            engine.set_weight_version(str(version))
            self.version = int(engine.get_weight_version())
        self._num_bytes = weights.num_bytes

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, reader: EndedReader | None = None
    ) -> list[list[Completion]]:
        """Return a completion per request and seed, also to `reader` as it ends. Raises: EngineError without room."""
        check_requests(requests, sampling.max_tokens, self._limit, LONGEST_FIELD)
        self._wake_to_generate()
        engine = self._llm.llm_engine
        indices: dict[str, tuple[int, int]] = {}
        completions: dict[tuple[int, int], Completion] = {}
        with boundary(EngineError, "generating with vLLM"):
            # Ranks that share the engine must add equal requests in equal order, as they run its steps in lockstep.
            for i, request in self._requests_of_all_ranks(requests):
                # One request of vLLM's for each response: with its option `n`, vLLM would number the seeds itself.
                for j, seed in enumerate(request.seeds):
                    params = self._vllm.sampling_params(**options(self.policy, sampling, seed))
                    self._num_requests += 1
                    prompt = {"prompt_token_ids": list(request.prompt_ids)}
                    engine.add_request(str(self._num_requests), prompt, params, lora_request=self._lora_request)
                    if i is not None:
                        indices[str(self._num_requests)] = (i, j)
            while engine.has_unfinished_requests():
                with turn("unswitched"):
                    outs = [out for out in engine.step() if out.finished and out.request_id in indices]
                done = {indices[out.request_id]: self._completion(out, sampling) for out in outs}
                completions.update(done)
                if done and reader is not None:
                    reader([Ended(i, j, c.token_ids, c.finish_reason) for (i, j), c in done.items()])
        return [[completions[i, j] for j in range(len(r.seeds))] for i, r in enumerate(requests)]

    def rest(self) -> None:
        """Free the GPU's memory until the next weights or prompts come; do nothing if vLLM has no sleep mode."""
        if self.sleep_note is None and not self._asleep:
            with boundary(EngineError, "putting vLLM to sleep"):
                # Before the first publish its weights are random: nothing to keep, but its own tensors for adapters.
                is_random = self.version < 0 and self.policy.adapters is None
                self._llm.sleep(level=2 if is_random else self._sleep_level)
            self._asleep = True

    def counts(self) -> Mapping[str, float]:
        """Return the bytes of the last publish: those of adapters alone, if it takes them."""
        return {} if self._num_bytes is None else {"publish/bytes": float(self._num_bytes)}

    def close(self) -> None:
        """Release vLLM's memory. The trainer's own process group stays."""
        llm, self._llm = self._llm, None
        if llm is not None:
            # Now, not when garbage is collected: vLLM would then end the trainer's group too.
            self._vllm.shutdown(llm, self._own_group)
            del llm
            VllmEngine._live -= 1
            # vLLM's objects refer to each other in cycles, which would keep the GPU's memory.
            gc.collect()
            self._folder.cleanup()

    def _requests_of_all_ranks(self, requests: Sequence[Request]) -> list[tuple[int | None, Request]]:
        """Return the requests of all ranks that share this engine, in one order on all of them.

        Each comes with its index among this rank's requests, or None if it belongs to another rank.
        """
        if self._engine_ranks is None:
            return list(enumerate(requests))
        return [
            (i if rank == self._engine_ranks.rank else None, request)
            for rank, theirs in enumerate(self._engine_ranks.gather(list(requests)))
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

    def _arguments_of_ranks(self) -> dict[str, Any]:
        """Return the arguments of an engine in this process that depend on the device and on the ranks."""
        arguments: dict[str, Any] = {}
        if not self._vllm.on_cpu():
            arguments["enable_sleep_mode"] = self.sleep_note is None
        # The ranks of the launched group are vLLM's workers. Its own executor would take the first GPU on each of them.
        if self.config.tensor_parallel > 1 or num_ranks() > 1:
            arguments["distributed_executor_backend"] = "external_launcher"
        return arguments

    def _wake(self, tag: str) -> None:
        """Allocate the memory of `tag` ("weights", then "kv_cache") again, if the engine sleeps.

        A publish wakes the weights first and the cache at its end, when the trainer's gathered pieces are freed.
        """
        if self._asleep:
            self._llm.wake_up([tag])
            self._asleep = tag == "weights"  # the cache still sleeps

    def _wake_to_generate(self) -> None:
        """Wake with the weights of the last publish. Raises: EngineError if there was none.

        After a sleep of level 2 they are sent again, by all ranks together. The policy still has them: each
        update is followed by a publish, or was refused and changed nothing.
        """
        if not self._asleep:
            return
        if self.version < 0:
            raise EngineError("vLLM was asked for responses before it had any weights; publish them first")
        if self._sleep_level == 2:
            self.publish(self.version)
        else:
            self._wake("weights")
            self._wake("kv_cache")


def sleeping_bytes() -> int:
    """Return the bytes that torch counts as allocated, and that vLLM has given back while it sleeps."""
    return int(import_vllm().sleeping_bytes())


def num_ranks() -> int:
    """Return the number of ranks that were launched together with this one."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


@contextmanager
def local_rank_of(device: torch.device, on_cpu: bool) -> Iterator[None]:
    """Set LOCAL_RANK within the block to the trainer's device: vLLM takes its GPU from there.

    Launchers set it to the rank's number, but a rank that sees a single GPU has GPU 0.
    Raises: ConfigError for a single rank on another GPU than the first, which vLLM takes.
    """
    before = os.environ.get("LOCAL_RANK")
    index: int | None = 0 if on_cpu or device.type == "cpu" else device.index
    if index is None:
        index = torch.cuda.current_device()
    if num_ranks() == 1 and index > 0:
        raise ConfigError(
            f"train.device={device}, and vLLM in the training process takes the first GPU that it sees; set "
            f"CUDA_VISIBLE_DEVICES={index} and train.device: cuda"
        )
    os.environ["LOCAL_RANK"] = str(index)
    try:
        yield
    finally:
        if before is None:
            del os.environ["LOCAL_RANK"]
        else:
            os.environ["LOCAL_RANK"] = before
