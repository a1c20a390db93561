"""The functions of ours that call vLLM, and the code that runs in its workers to load new weights.

vLLM imports this module in every worker (`worker_extension_cls`); the last lines then register the transfer over gloo.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors.torch import save_file
from torch import Tensor
from vllm import LLM, SamplingParams
from vllm.config import set_current_vllm_config
from vllm.device_allocator.cumem import CuMemAllocator
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLWeightTransferEngine
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind

from verizero.pipeline.models.compiled import own_compile_threads
from verizero.pipeline.models.lora import is_factor
from verizero.pipeline.rollout.weights import ADAPTER_NAME, ADAPTER_NUMBER, Named, broadcast, join_group, rendezvous

T = TypeVar("T")
TRANSFERS = {"gloo": "verizero_gloo", "nccl": "verizero_nccl"}
"""Transport of weights -> the name under which vLLM knows our engine of it."""


def on_cpu() -> bool:
    """True if this vLLM is built for the CPU."""
    return bool(current_platform.is_cpu())


def why_no_records() -> str | None:
    """Return why this build cannot record sets of tokens and experts; None if it can."""
    from vllm.triton_utils import HAS_TRITON

    if on_cpu():
        return "vLLM's build for the CPU lacks that runner"
    return None if HAS_TRITON else "that runner needs Triton, which is not installed"


def head_sizes() -> list[int] | None:
    """Return the sizes of attention heads that the CPU build computes; None for a GPU build, which takes any."""
    if not on_cpu():
        return None
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    return [int(size) for size in CPUAttentionBackend.get_supported_head_sizes()]


def argument_names() -> set[str]:
    """Return the names of all arguments that vLLM's engine takes."""
    return {f.name for f in fields(EngineArgs)}


def make_llm(arguments: dict[str, Any]) -> Any:
    """Start vLLM in this process, and restore the global state that it changes: random states, torch's threads."""
    import random

    import numpy

    # vLLM seeds the global generators, sets one thread where OMP_NUM_THREADS says none, and its CPU worker replaces
    # torch.set_num_threads.
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state(), torch.set_num_threads
    threads = torch.get_num_threads()
    try:
        with own_compile_threads():
            return LLM(**arguments)
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        numpy.random.set_state(before[2])
        torch.set_num_threads = before[3]
        torch.set_num_threads(threads)


def shutdown(llm: Any, ends_group: bool) -> None:
    """End an engine of `make_llm`, and free its memory. Without `ends_group` torch's default process group stays.

    vLLM ends that group too. It would do all this when the engine is collected as garbage, or at the process's end.
    """
    end = torch.distributed.destroy_process_group

    def end_other(group: Any = None) -> None:
        if group is not None:
            end(group)

    try:
        if not ends_group:
            torch.distributed.destroy_process_group = end_other
        llm.llm_engine.engine_core.shutdown()
    finally:
        torch.distributed.destroy_process_group = end


def sleeping_bytes() -> int:
    """Return the bytes of this process's tensors whose memory vLLM has given back; torch counts them as allocated."""
    allocator = CuMemAllocator.instance
    entries = {} if allocator is None else allocator.pointer_to_data
    asleep = frozenset(address for address, data in entries.items() if data.is_asleep)
    return _allocated_at(asleep) if asleep else 0


@functools.lru_cache(maxsize=1)  # torch's list of blocks is long, and nothing is allocated where all sleeps
def _allocated_at(addresses: frozenset[int]) -> int:
    pools = [pool for entries in CuMemAllocator.instance.allocator_and_pools.values() for pool, _ in entries]
    segments = (segment for pool in pools for segment in pool.snapshot())
    return sum(segment["allocated_size"] for segment in segments if segment["address"] in addresses)


@dataclass(frozen=True, slots=True)
class EngineRanks:
    """The ranks that share one engine, and this rank's index among them."""

    rank: int
    size: int
    group: Any

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank; all of them must call this."""
        values: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(values, value, group=self.group)
        return values


def ranks_of_engine() -> EngineRanks:
    """Return the ranks that share this process's engine, which must have been started."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    return EngineRanks(group.rank_in_group, group.world_size, group.cpu_group)


def sampling_params(**options: Any) -> Any:
    """Return vLLM's options for one response, which vLLM returns once, when it has ended."""
    return SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **options)


def start_reload(model: Any, model_config: Any) -> set[str]:
    """Make the model ready for new weights; return the names of all weights that must come."""
    # A sender that died amid an earlier update left the model half reloaded: tied weights are separate, and the weights
    # that it sent would count as new ones. Ending that update first undoes both; without one it does nothing.
    finalize_layerwise_reload(model, model_config)
    before = _names(model)
    initialize_layerwise_reload(model)
    # The last line separates tied weights, which come once, and removes tensors that vLLM computes from the weights,
    # such as the scales of 8-bit weights, which never come. Both are named only before or only after it.
    return before & _names(model)


def _names(model: Any) -> set[str]:
    """Return the names of the model's weights; where vLLM has put adapters around layers, as they were before."""
    return {name.replace(".base_layer.", ".") for name, _ in model.named_parameters()}


def finish_reload(model: Any, model_config: Any, missing: set[str]) -> None:
    """Put the new weights to use. Raises: RuntimeError if some of them, `missing`, did not come."""
    finalize_layerwise_reload(model, model_config)
    if on_cpu():
        # The CPU kernel of an output layer keeps a packed copy of its weights. A layer tied to the embedding receives
        # no weights of its own, so nothing packs it again, and it would silently compute with the old ones.
        for module in model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
    if missing:
        raise RuntimeError(f"{len(missing)} weights of vLLM's model did not come, among them {min(missing)}")


class Receiver:
    """Takes one update of vLLM's model: loads its weights, and keeps adapters for `WorkerExtension.put_adapters`."""

    def __init__(self, model: Any, model_config: Any) -> None:
        self.model, self.model_config = model, model_config
        self._missing: set[str] | None = None
        """None before the first weight: with adapters alone the model stays as it is."""
        self._factors: dict[str, Tensor] = {}

    def load_weights(self, weights: Named) -> Any:
        """Load some of the weights; return the names that the model took, as its own method does."""
        others = self._others(weights)
        waiting = list(islice(others, 1))
        if not waiting:
            return set()
        if self._missing is None:
            self._missing = start_reload(self.model, self.model_config)

        def all_others() -> Iterator[tuple[str, Tensor]]:
            yield waiting.pop()  # which keeps nothing of a weight that the model has taken
            yield from others

        loaded = self.model.load_weights(all_others())
        # None: this kind of model does not say which weights it took.
        self._missing -= self._missing if loaded is None else set(loaded)
        return loaded

    def finish(self) -> None:
        """Put the weights to use, and leave the adapters at the model. Raises: RuntimeError if some did not come."""
        if self._missing is not None:
            finish_reload(self.model, self.model_config, self._missing)
            self.model.verizero_has_weights = True
        elif not self._factors:
            raise RuntimeError("an update of vLLM's model ended before any weight came")
        self.model.verizero_factors = self._factors

    def _others(self, weights: Named) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights that are no adapters, and keep copies of those that are."""
        for name, tensor in weights:
            if is_factor(name):
                self._factors[name] = tensor.to("cpu", copy=True).contiguous()
            else:
                yield name, tensor


class WorkerExtension:
    """Methods that vLLM adds to each of its workers."""

    model_runner: Any
    vllm_config: Any

    def forget_update(self) -> None:
        """Allow a new update of weights after the sender of the last one died before its end."""
        # vLLM's own flag; there is no route that resets it.
        self._weight_update_active = False

    def load_named(self, weights: Named) -> None:
        """Load the weights of this process's trainer."""
        receiver = Receiver(self.model_runner.get_model(), self.vllm_config.model_config)
        with set_current_vllm_config(self.vllm_config):  # some layers read it, as vLLM's own ways of loading let them
            receiver.load_weights(weights)
            receiver.finish()

    def put_adapters(self, settings: dict[str, Any]) -> list[int]:
        """Use the adapters that came last in place of all others; return the numbers of those that vLLM then has.

        `settings`: peft's. Raises: RuntimeError if their base did not come since vLLM was started.
        """
        model, worker = self.model_runner.get_model(), cast(Any, self)
        if not getattr(model, "verizero_has_weights", False):
            raise RuntimeError("adapters came to a vLLM that has no base; it was started again")
        for number in worker.list_loras():
            worker.remove_lora(number)
        with tempfile.TemporaryDirectory(prefix="verizero-adapters-") as folder:
            save_file(model.verizero_factors, Path(folder) / "adapter_model.safetensors")
            (Path(folder) / "adapter_config.json").write_text(json.dumps(settings))
            worker.add_lora(LoRARequest(ADAPTER_NAME, ADAPTER_NUMBER, folder))
        model.verizero_factors = {}
        return sorted(worker.list_loras())


@dataclass
class GlooInit(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """The trainer's address; it is rank 0 of a group with all workers of this server."""

    host: str
    port: int
    world_size: int
    timeout_s: float


@dataclass
class GlooUpdate(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """One piece of the weights: names, types and shapes in the order in which they are broadcast."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class GlooTransfer(WeightTransferEngine[GlooInit, GlooUpdate]):  # type: ignore[misc, unused-ignore]
    """Receives weights by broadcast from the trainer, over gloo: it needs no GPU that both processes use."""

    init_info_cls = GlooInit
    update_info_cls = GlooUpdate

    def init_transfer_engine(self, init_info: GlooInit) -> None:
        """Join the trainer's group; a new group replaces an old one."""
        parallel = self.parallel_config
        # Rank 0 is the trainer; the workers follow, replica by replica.
        rank = 1 + parallel.data_parallel_index * parallel.world_size + torch.distributed.get_rank()
        store = rendezvous(init_info.host, init_info.port, init_info.world_size, init_info.timeout_s, False)
        self.group = join_group(store, rank, init_info.world_size, init_info.timeout_s)

    def start_weight_update(self) -> None:
        """Prepare for new weights, which come in any number of pieces."""
        self.receiver = Receiver(self.model, self.model_config)

    def receive_weights(self, update_info: GlooUpdate) -> None:
        """Receive one piece and load it."""
        received = []
        for name, dtype, shape in zip(update_info.names, update_info.dtypes, update_info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            broadcast(self.group, tensor)
            received.append((name, tensor))
        self.receiver.load_weights(received)

    def finish_weight_update(self) -> None:
        """Put the new weights to use. Raises: RuntimeError if some did not come."""
        self.receiver.finish()

    def shutdown(self) -> None:
        """Leave the group."""
        self.group = None


class ChecksCompleteness:
    """Makes vLLM's own transfer refuse an update if some weights did not come; vLLM itself only logs that."""

    model: Any
    model_config: Any

    def start_weight_update(self) -> None:
        """Prepare for new weights, which come in any number of pieces."""
        self.receiver = Receiver(self.model, self.model_config)

    def receive_weights(self, update_info: Any) -> None:
        """Receive one piece as vLLM does, and record the names that the model took."""
        model = self.model
        self.model = self.receiver
        try:
            super().receive_weights(update_info)  # type: ignore[misc]
        finally:
            self.model = model

    def finish_weight_update(self) -> None:
        """Put the new weights to use. Raises: RuntimeError if some did not come."""
        super().finish_weight_update()  # type: ignore[misc]
        self.receiver.finish()


class NcclTransfer(ChecksCompleteness, NCCLWeightTransferEngine):  # type: ignore[misc, unused-ignore]
    """Receives weights by broadcast from the trainer's GPU."""


def open_nccl(client: Any, source: Any, address: str, port: int, world_size: int, buffer_bytes: int) -> Any:
    """Return vLLM's sender over NCCL, rank 0 of `world_size`; the server's workers join through `client`."""
    info = NCCLTrainerInitInfo(
        master_address=address,
        master_port=port,
        world_size=world_size,
        packed=True,
        packed_buffer_size_bytes=buffer_bytes,
        rank=0,
    )
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


def metadata_of(bucket: list[tuple[str, Tensor]]) -> list[Any]:
    """Return names, types and shapes of some weights, as vLLM's senders announce them."""
    return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in bucket]


# vLLM refuses a second registration of a name, and the module may be imported under two paths.
for transport, transfer in (("gloo", GlooTransfer), ("nccl", NcclTransfer)):
    if TRANSFERS[transport] not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(TRANSFERS[transport], transfer)
