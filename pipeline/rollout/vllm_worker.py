"""What is imported from vLLM, and what runs inside its workers: how weights reach its model.

vLLM imports this module in every worker (`worker_extension_cls`), which registers the transfer over gloo. Nothing else
of the project imports vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor
from vllm import LLM, SamplingParams
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind

from pipeline.rollout.weight_group import broadcast, group, meeting
from pipeline.rollout.weights import Named

T = TypeVar("T")
TRANSFER = "verizero_gloo"
"""The name under which vLLM knows our transfer of weights."""
EXTENSION = "pipeline.rollout.vllm_worker.WorkerExtension"


def on_cpu() -> bool:
    """vLLM is the build for the CPU."""
    return bool(current_platform.is_cpu())


def why_no_records() -> str | None:
    """Why this build's model runner records neither sets of tokens nor experts; None where it does."""
    from vllm.triton_utils import HAS_TRITON

    if on_cpu():
        return "vLLM's build for the CPU has the first alone"
    return None if HAS_TRITON else "it runs on Triton, which is not installed"


def head_sizes() -> list[int] | None:
    """The sizes of attention heads that this build computes; None: it is not the CPU's, and falls back by itself."""
    if not on_cpu():
        return None
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    return [int(size) for size in CPUAttentionBackend.get_supported_head_sizes()]


def argument_names() -> set[str]:
    """All arguments that vLLM's engine takes."""
    return {f.name for f in fields(EngineArgs)}


def make_llm(arguments: dict[str, Any]) -> Any:
    """An engine of vLLM in this process. Global random states and torch's setter of threads stay as they were."""
    import random

    import numpy

    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state(), torch.set_num_threads
    try:
        return LLM(**arguments)
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        numpy.random.set_state(before[2])
        torch.set_num_threads = before[3]


@dataclass(frozen=True, slots=True)
class Mates:
    """The ranks that are together one engine, and the place of this one among them."""

    rank: int
    size: int
    group: Any

    def gather(self, value: T) -> list[T]:
        """Each one's value, by its place; all of them call this."""
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, value, group=self.group)
        return found


def mates() -> Mates:
    """Those of this process's engine, which was made."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    return Mates(group.rank_in_group, group.world_size, group.cpu_group)


def sampling_params(**options: Any) -> Any:
    """How one response is drawn, handed over when it ends."""
    return SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **options)


def begin(model: Any, model_config: Any) -> set[str]:
    """Make the model ready for new weights; the names of all that it needs.

    Where some came before and their sender died, the model is still in pieces: tied weights are apart, and what came
    would be counted to the new. So what was begun is ended first.
    """
    finalize_layerwise_reload(model, model_config)
    needed = {name for name, _ in model.named_parameters()}  # before: it unties tied weights for a while
    initialize_layerwise_reload(model)
    return needed


def finish(model: Any, model_config: Any, missing: set[str]) -> None:
    """Put the new weights to use.

    On the CPU the kernel of an output layer keeps packed weights, and a layer that shares them with the embedding
    receives none of its own: it would go on with the old ones and say nothing. So it is packed anew.
    Raises: RuntimeError if some of the model's weights did not come.
    """
    finalize_layerwise_reload(model, model_config)
    if on_cpu():
        for module in model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
    if missing:
        raise RuntimeError(f"{len(missing)} weights of vLLM's model did not come, among them {min(missing)}")


def load(model: Any, model_config: Any, weights: Named) -> None:
    """Replace the weights of vLLM's model. Raises: RuntimeError if some did not come."""
    needed = begin(model, model_config)
    loaded = model.load_weights(weights)
    finish(model, model_config, needed - (needed if loaded is None else set(loaded)))


class WorkerExtension:
    """Methods that each of vLLM's workers gains."""

    model_runner: Any
    vllm_config: Any

    def forget_update(self) -> None:
        """Let a new update of weights begin where the sender of another died before its end."""
        self._weight_update_active = False

    def load_named(self, weights: Named) -> None:
        """Take the weights of this process's trainer."""
        load(self.model_runner.get_model(), self.vllm_config.model_config, weights)

    def load_folder(self, folder: str) -> None:
        """Take the weights of a saved folder."""
        load(self.model_runner.get_model(), self.vllm_config.model_config, _of_folder(folder))


def _of_folder(folder: str) -> Iterator[tuple[str, Tensor]]:
    from pathlib import Path

    from safetensors import safe_open

    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                yield name, file.get_tensor(name)


@dataclass
class GlooInit(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """Where the trainer waits, which is rank 0 of a group with all workers of this server."""

    host: str
    port: int
    world_size: int
    timeout_s: float


@dataclass
class GlooUpdate(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """One piece: what comes, in which order."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class GlooTransfer(WeightTransferEngine[GlooInit, GlooUpdate]):  # type: ignore[misc, unused-ignore]
    """Receives weights by broadcast from the trainer, over gloo: between processes without GPUs in common."""

    init_info_cls = GlooInit
    update_info_cls = GlooUpdate

    def init_transfer_engine(self, init_info: GlooInit) -> None:
        """Join the trainer's group; a new one replaces the old."""
        parallel = self.parallel_config
        rank = 1 + parallel.data_parallel_index * parallel.world_size + torch.distributed.get_rank()
        store = meeting(init_info.host, init_info.port, init_info.world_size, init_info.timeout_s, False)
        self.group = group(store, rank, init_info.world_size, init_info.timeout_s)

    def start_weight_update(self) -> None:
        """Weights come, by any number of pieces."""
        self.missing = begin(self.model, self.model_config)

    def receive_weights(self, update_info: GlooUpdate) -> None:
        """Take one piece."""
        got = []
        for name, dtype, shape in zip(update_info.names, update_info.dtypes, update_info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            broadcast(self.group, tensor)
            got.append((name, tensor))
        loaded = self.model.load_weights(got)
        self.missing -= self.missing if loaded is None else set(loaded)

    def finish_weight_update(self) -> None:
        """The last piece came. Raises: RuntimeError if some weights did not."""
        finish(self.model, self.model_config, self.missing)

    def shutdown(self) -> None:
        """Leave the group."""
        self.group = None


if TRANSFER not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(TRANSFER, GlooTransfer)
