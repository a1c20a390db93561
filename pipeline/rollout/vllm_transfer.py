"""The transports of new weights to a vLLM server: gloo through the CPU, NCCL between GPUs, IPC within one GPU.

NCCL and IPC are vLLM's own transfers (0.32), never run here. A vLLM sender is made to send a whole model by
one call; we call it for each piece, so that no process needs all weights and all servers are served in one pass.
"""

from __future__ import annotations

import pickle
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.listening import free_port
from verizero.pipeline.rollout.server_client import ServerLost
from verizero.pipeline.rollout.server_pool import in_thread
from verizero.pipeline.rollout.vllm_process import Way
from verizero.pipeline.rollout.vllm_remote import POLL_S, RemoteServer
from verizero.pipeline.rollout.weight_group import begin_broadcast, join_group, rendezvous


def way_of(config: VllmConfig, device: torch.device, num_ranks: int) -> Way:
    """Return the transport of weights from `device` of rank 0. Raises: ConfigError for one that cannot work."""
    way = config.transfer
    if way in ("nccl", "ipc") and device.type != "cuda":
        raise ConfigError(
            f"rollout.vllm.transfer={way} moves weights from a GPU, and the policy is on {device}; set transfer: auto"
        )
    if way == "ipc" and num_ranks > 1:
        raise ConfigError(
            f"rollout.vllm.transfer=ipc hands memory over within one GPU, and the run has {num_ranks} ranks; set "
            "transfer: nccl"
        )
    if way != "auto":
        return way
    if device.type != "cuda":
        return "gloo"
    trainer_gpu, server_gpus = device.index or 0, {gpu for gpus in config.devices for gpu in gpus}
    if trainer_gpu not in server_gpus:
        return "nccl"
    # NCCL refuses two processes on one GPU.
    return "ipc" if server_gpus == {trainer_gpu} and num_ranks == 1 else "gloo"


class GlooChannel:
    """A group over gloo with the workers of one server, for tensors on the CPU."""

    def __init__(self, server: RemoteServer) -> None:
        """Form the group. Raises: ServerLost, EngineError."""
        self.server = server
        world, wait_s = 1 + num_workers(server), server.limits.request_timeout_s
        # The store must listen before the server gets its port; both sides then join at the same time.
        store = rendezvous(host := server.address_here(), 0, world, wait_s, True)
        info = {"host": host, "port": store.port, "world_size": world, "timeout_s": wait_s}
        server_joined = in_thread(lambda: server.ask("POST", "/init_weight_transfer_engine", {"init_info": info}))
        group = in_thread(lambda: join_group(store, 0, world, wait_s))
        try:
            while not group.done():
                if server_joined.done():
                    server_joined.result()  # raises if the server refuses: its workers would never come
                time.sleep(POLL_S)
            self._group = group.result()
        except RuntimeError as exc:
            raise ServerLost(f"{server.url}: meeting its workers for weights: {exc}") from exc
        server_joined.result()

    def send(self, bucket: Sequence[tuple[str, Tensor]]) -> None:
        """Send one piece of the weights. Raises: ServerLost, EngineError."""
        info = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(t.dtype).removeprefix("torch.") for _, t in bucket],
            "shapes": [list(t.shape) for _, t in bucket],
        }
        # The announcement and the broadcast must be sent at the same time: the server answers after both.
        received = in_thread(lambda: self.server.ask("POST", "/update_weights", {"update_info": info}))
        sends = [begin_broadcast(self._group, tensor) for _, tensor in bucket]
        try:
            while not all(work.is_completed() for work in sends):
                if received.done():
                    received.result()  # raises if the server failed; the broadcast would wait for the whole timeout
                time.sleep(POLL_S)
            for work in sends:
                work.wait()
        except RuntimeError as exc:
            raise ServerLost(f"{self.server.url}: sending weights: {exc}") from exc
        received.result()

    def leave(self) -> None:
        """Leave the group; waits for its sends."""
        self._group = None


class VllmChannel:
    """vLLM's own sender to one server, for tensors on a GPU."""

    def __init__(
        self, server: RemoteServer, way: Literal["nccl", "ipc"], device: torch.device, piece_bytes: int, vllm: Any
    ) -> None:
        """Meet the server's workers. `vllm`: the module that imports vLLM. Raises: ServerLost, EngineError."""
        self.server, self.way, self.device = server, way, device
        self._piece = _PieceSource(vllm)
        client = _Client(server)
        try:
            with on_gpu(device):
                if way == "nccl":
                    meeting = (server.address_here(), free_port(""), 1 + num_workers(server))
                    self._sender: Any = vllm.open_nccl(client, self._piece, *meeting, piece_bytes)
                else:
                    self._sender = vllm.open_ipc(client, self._piece, piece_bytes)
        except (RuntimeError, ValueError) as exc:
            raise ServerLost(f"{server.url}: meeting its workers for weights over {way}: {exc}") from exc

    def send(self, bucket: Sequence[tuple[str, Tensor]]) -> None:
        """Send one piece of the weights. Raises: ServerLost, EngineError."""
        self._piece.bucket = list(bucket)
        if self.way == "ipc":  # its buffer must hold the piece, which a large tensor makes larger than others
            self._sender.packed_buffer_size_bytes = sum(t.numel() * t.element_size() for _, t in bucket)
        try:
            with on_gpu(self.device):
                self._sender.send_weights()
        except (RuntimeError, ValueError) as exc:
            raise ServerLost(f"{self.server.url}: sending weights over {self.way}: {exc}") from exc
        finally:
            self._piece.bucket = []

    def leave(self) -> None:
        """End the connection."""
        self._sender.shutdown()


class _Client:
    """A server as vLLM's senders see it. They send pieces; `RemoteServer` begins and ends the update."""

    def __init__(self, server: RemoteServer) -> None:
        self.server = server

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Connect the server's workers with the sender."""
        self.server.ask("POST", "/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Do nothing: the update has begun."""

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        """Send one piece to the server."""
        info = {name: value for name, value in update_info.items() if value is not None}
        handles = info.pop("ipc_handles", None)
        if handles is not None:  # tuples and bytes, which JSON does not have
            info["ipc_handles_pickled"] = b64encode(pickle.dumps(handles)).decode()
        self.server.ask("POST", "/update_weights", {"update_info": info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Do nothing: more pieces may follow."""


class _PieceSource:
    """The weights of one piece as vLLM's senders read them."""

    def __init__(self, vllm: Any) -> None:
        self.bucket: list[tuple[str, Tensor]] = []
        self._vllm = vllm

    def metadata(self) -> list[Any]:
        """Return names, types and shapes."""
        return list(self._vllm.metadata_of(self.bucket))

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.bucket)


def num_workers(server: RemoteServer) -> int:
    """Return the number of processes of a server that take weights. Raises: ServerLost."""
    return int(server.ask_for("world_size", "GET", "/get_world_size"))


def ready_to_send(bucket: Sequence[tuple[str, Tensor]], way: Way) -> list[tuple[str, Tensor]]:
    """Return the tensors on the device that the transport `way` reads, so that other threads may send them."""
    if way == "gloo":
        return [(name, tensor.to("cpu").contiguous()) for name, tensor in bucket]
    ready = [(name, tensor.contiguous()) for name, tensor in bucket]
    if ready and ready[0][1].is_cuda:  # a thread has a stream of its own, which would not wait for this one's copies
        torch.cuda.current_stream(ready[0][1].device).synchronize()
    return ready


def on_gpu(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which this thread uses the device: a new thread uses the first GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
