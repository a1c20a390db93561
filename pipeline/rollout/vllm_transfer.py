"""The ways in which new weights reach a vLLM server: gloo through the CPU, NCCL between GPUs, memory of one GPU.

NCCL and IPC are vLLM's own transfers (0.32), never run here. vLLM's senders are made to send a whole model by one call;
ours are called once for each piece, so that no process holds all weights and one pass over them serves all servers.
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
    """Return how weights on `device` of rank 0 travel to the servers. Raises: ConfigError where that cannot work."""
    asked = config.transfer
    if asked in ("nccl", "ipc") and device.type != "cuda":
        raise ConfigError(
            f"rollout.vllm.transfer={asked} moves weights from a GPU, and the policy is on {device}; set transfer: auto"
        )
    if asked == "ipc" and num_ranks > 1:
        raise ConfigError(
            f"rollout.vllm.transfer=ipc hands memory over within one GPU, and the run has {num_ranks} ranks; set "
            "transfer: nccl"
        )
    if asked != "auto":
        return asked
    if device.type != "cuda":
        return "gloo"
    own, theirs = device.index or 0, {gpu for gpus in config.devices for gpu in gpus}
    if own not in theirs:
        return "nccl"
    # NCCL refuses two processes on one GPU.
    return "ipc" if theirs == {own} and num_ranks == 1 else "gloo"


class GlooChannel:
    """A group over gloo with the workers of one server, for tensors on the CPU."""

    def __init__(self, server: RemoteServer) -> None:
        """Form the group. Raises: ServerLost, EngineError."""
        self.server = server
        world, wait_s = 1 + num_workers(server), server.limits.request_timeout_s
        # The store must listen before the server is told its port; both sides then join at the same time.
        store = rendezvous(here := server.address_here(), 0, world, wait_s, True)
        info = {"host": here, "port": store.port, "world_size": world, "timeout_s": wait_s}
        joined = in_thread(lambda: server.ask("POST", "/init_weight_transfer_engine", {"init_info": info}))
        met = in_thread(lambda: join_group(store, 0, world, wait_s))
        try:
            while not met.done():
                if joined.done():
                    joined.result()  # raises if the server refuses: its workers would never come
                time.sleep(POLL_S)
            self._group = met.result()
        except RuntimeError as exc:
            raise ServerLost(f"{server.url}: meeting its workers for weights: {exc}") from exc
        joined.result()

    def send(self, bucket: Sequence[tuple[str, Tensor]]) -> None:
        """Send one piece of the weights. Raises: ServerLost, EngineError."""
        info = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(t.dtype).removeprefix("torch.") for _, t in bucket],
            "shapes": [list(t.shape) for _, t in bucket],
        }
        # The server must be told of the piece and receive the broadcast at the same time: it answers after both.
        taken = in_thread(lambda: self.server.ask("POST", "/update_weights", {"update_info": info}))
        sends = [begin_broadcast(self._group, tensor) for _, tensor in bucket]
        try:
            while not all(work.is_completed() for work in sends):
                if taken.done():
                    taken.result()  # raises if the server failed; the broadcast would wait for the whole timeout
                time.sleep(POLL_S)
            for work in sends:
                work.wait()
        except RuntimeError as exc:
            raise ServerLost(f"{self.server.url}: sending weights: {exc}") from exc
        taken.result()

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
        self._piece = _Piece(vllm)
        client = _Client(server)
        try:
            with on_gpu(device):
                if way == "nccl":
                    place = (server.address_here(), free_port(""), 1 + num_workers(server))
                    self._sender: Any = vllm.open_nccl(client, self._piece, *place, piece_bytes)
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
    """A server as vLLM's senders ask it. An update begins and ends once, with all pieces, which `RemoteServer` does."""

    def __init__(self, server: RemoteServer) -> None:
        self.server = server

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Have the server's workers meet the sender."""
        self.server.ask("POST", "/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Do nothing: the update has begun."""

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        """Have the server take one piece."""
        info = {name: value for name, value in update_info.items() if value is not None}
        handles = info.pop("ipc_handles", None)
        if handles is not None:  # tuples and bytes, which JSON does not have
            info["ipc_handles_pickled"] = b64encode(pickle.dumps(handles)).decode()
        self.server.ask("POST", "/update_weights", {"update_info": info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Do nothing: more pieces may follow."""


class _Piece:
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


def settled(bucket: Sequence[tuple[str, Tensor]], way: Way) -> list[tuple[str, Tensor]]:
    """Return the tensors where `way` reads them, complete, so that other threads may send them."""
    if way == "gloo":
        return [(name, tensor.to("cpu").contiguous()) for name, tensor in bucket]
    ready = [(name, tensor.contiguous()) for name, tensor in bucket]
    if ready and ready[0][1].is_cuda:  # a thread has a stream of its own, which would not wait for this one's copies
        torch.cuda.current_stream(ready[0][1].device).synchronize()
    return ready


def on_gpu(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which this thread uses the device: a new thread uses the first GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
