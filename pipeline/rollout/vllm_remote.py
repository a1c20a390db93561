"""A client of one vLLM server, and the channels for weights to it: gloo through the CPU, NCCL between GPUs.

Prompts and responses are token ids; weights go over a channel. NCCL is vLLM's own transfer (0.32),
never run here. Its sender is made to send a whole model by one call; we call it for each piece, so that no process
needs all weights and all servers are served in one pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import ConfigError, EngineError
from verizero.pipeline.host.network import free_port
from verizero.pipeline.rollout.engine import Completion, Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.http_client import HttpClient
from verizero.pipeline.rollout.server_client import ServerLost
from verizero.pipeline.rollout.server_pool import in_thread
from verizero.pipeline.rollout.vllm_arguments import (
    NOWHERE,
    Way,
    check_adapters,
    check_spans,
    finish_reason,
    options,
    settings_of,
)
from verizero.pipeline.rollout.vllm_records import decode_array, kept_tokens, routing
from verizero.pipeline.rollout.weights import ADAPTER_NAME, begin_broadcast, join_group, rendezvous

POLL_S = 0.0005
WeightsPiece = Sequence[tuple[str, Tensor]]
"""Some weights, on the device from which a channel reads."""


class Channel(Protocol):
    """A connection that sends weights to a server's workers."""

    def send(self, bucket: WeightsPiece) -> None:
        """Send one piece of the weights. Raises: ServerLost, EngineError."""
        ...

    def leave(self) -> None:
        """End the connection; may take a while."""
        ...


class RemoteServer(HttpClient):
    """The server at `url`. Any number of threads may call it at once."""

    def __init__(self, url: str, policy: EngineModel, config: VllmConfig, connect: Connect) -> None:
        """`connect` makes the channel for weights at the first update, and again after a restart of the server."""
        super().__init__(url, config, "rollout.vllm", "is it vLLM 0.32?")
        self._policy = policy
        self._connect_weights = connect
        self._channel: Channel | None = None
        self._is_updating = False
        self._last_version: str | None = None
        """The version that the server reported last; None amid an update. A different one later means a restart."""

    def sample(self, prompt_ids: Sequence[int], seed: int, sampling: Sampling, label: str) -> Completion:
        """Return one response. Raises: as `ask`, and ServerLost if weights of another version drew it."""
        body: dict[str, Any] = {"token_ids": list(prompt_ids)}
        body["sampling_params"] = options(self._policy, sampling, seed)
        if self._policy.adapters is not None:
            body["model"] = ADAPTER_NAME
        answer = self.ask("POST", "/inference/v1/generate", body)
        (choice,) = answer["choices"]
        logprobs = tuple(float(c["logprob"]) for c in (choice["logprobs"] or {}).get("content") or ())
        drawn = tuple(choice["token_ids"])
        if len(logprobs) != len(drawn):
            raise EngineError(f"{self.url} gave {len(logprobs)} log-probs for {len(drawn)} tokens; {self.hint}")
        # Weights may change during a response; each part must be of the version `label`.
        spans = [(s["version"], s["start"], s["end"]) for s in choice.get("weight_versions") or ()]
        try:
            check_spans(spans, label)
            reason = finish_reason(choice["finish_reason"])
        except EngineError as exc:
            raise ServerLost(f"{self.url}: {exc}") from exc
        kept = kept_tokens(choice.get("sampling_mask"), drawn, sampling)
        experts = decode_array(choice.get("routed_experts"))
        return Completion(drawn, logprobs, reason, kept, routing(experts, len(prompt_ids), len(drawn), sampling))

    @property
    def version(self) -> str:
        """The version of its weights, as the server reports it now."""
        self._last_version = str(self.ask_for("weight_version", "GET", "/weight_info"))
        return self._last_version

    def was_restarted(self) -> bool:
        """True if the server answers and reports another version than last time."""
        answer, before = self.ask_briefly("/weight_info"), self._last_version
        if not isinstance(answer, dict) or "weight_version" not in answer:
            return False
        self._last_version = str(answer["weight_version"])
        is_another = self._last_version != before
        # The workers of a server that was restarted are not in our group: a new one is formed.
        if is_another and self._channel is not None:
            in_thread(self._remove_channel().leave)
        return is_another

    def start_update(self) -> None:
        """Prepare the server for weights; connect to its workers at the first time."""
        if self._channel is None:
            # An update that broke off would make the server refuse to start another one.
            self.ask("POST", "/collective_rpc", {"method": "forget_update"})
            self._channel = self._connect_weights(self)
        self.ask("POST", "/start_weight_update")
        self._is_updating = True

    def take_weights(self, piece: WeightsPiece) -> None:
        """Send one piece of the weights."""
        self._last_version = None  # until it is confirmed: if it is lost now, it may come back with any
        if not self._is_updating:
            self.start_update()
        assert self._channel is not None
        self._channel.send(piece)

    def confirm(self, label: str) -> None:
        """End the update and call the weights `label`. Raises: ServerLost if the server does not confirm it."""
        self.ask("POST", "/finish_weight_update", {"weight_version": label})
        self._is_updating = False
        self._put_adapters()
        # Cached keys and values are of the old weights.
        if not self.ask_for("success", "POST", "/reset_prefix_cache"):
            raise ServerLost(f"{self.url} kept its prefix cache, which is of older weights")
        if (actual := self.version) != label:
            raise ServerLost(f"{self.url} has weights of version {actual} after version {label} was published")

    def _put_adapters(self) -> None:
        """Let the server use the adapters of the update. Raises: ServerLost, EngineError if it has others."""
        if self._policy.adapters is None:
            return
        put = {"method": "put_adapters", "args": [settings_of(self._policy.adapters.config)]}
        check_adapters(self.ask("POST", "/collective_rpc", put)["results"], self.url)
        if ADAPTER_NAME not in [model["id"] for model in self.ask_for("data", "GET", "/v1/models")]:
            self.ask("POST", "/v1/load_lora_adapter", {"lora_name": ADAPTER_NAME, "lora_path": NOWHERE}, has_json=False)

    def close(self) -> None:
        """Leave the channel; the server itself keeps running."""
        if self._channel is not None:
            self._remove_channel().leave()

    def _remove_channel(self) -> Channel:
        """Forget the channel and return it; an update on it counts as broken off."""
        assert self._channel is not None
        channel, self._channel, self._is_updating = self._channel, None, False
        return channel


Connect = Callable[[RemoteServer], Channel]


def way_of(config: VllmConfig, device: torch.device) -> Way:
    """Return the transport of weights from `device` of rank 0. Raises: ConfigError for one that cannot work."""
    way = config.transfer
    if way == "nccl" and device.type != "cuda":
        raise ConfigError(
            f"rollout.vllm.transfer={way} moves weights from a GPU, and the policy is on {device}; set transfer: auto"
        )
    if way != "auto":
        return way
    if device.type != "cuda":
        return "gloo"
    # NCCL refuses two processes on one GPU.
    return "gloo" if any((device.index or 0) in gpus for gpus in config.devices) else "nccl"


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

    def send(self, bucket: WeightsPiece) -> None:
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


class NcclChannel:
    """vLLM's own sender to one server, for tensors on a GPU."""

    def __init__(self, server: RemoteServer, device: torch.device, piece_bytes: int, vllm: Any) -> None:
        """Meet the server's workers. `vllm`: the module that imports vLLM. Raises: ServerLost, EngineError."""
        self.server, self.device = server, device
        self._piece = _PieceSource(vllm)
        try:
            with on_gpu(device):
                meeting = (server.address_here(), free_port(""), 1 + num_workers(server))
                self._sender: Any = vllm.open_nccl(_Client(server), self._piece, *meeting, piece_bytes)
        except (RuntimeError, ValueError) as exc:
            raise ServerLost(f"{server.url}: meeting its workers for weights over NCCL: {exc}") from exc

    def send(self, bucket: WeightsPiece) -> None:
        """Send one piece of the weights. Raises: ServerLost, EngineError."""
        self._piece.bucket = list(bucket)
        try:
            with on_gpu(self.device):
                self._sender.send_weights()
        except (RuntimeError, ValueError) as exc:
            raise ServerLost(f"{self.server.url}: sending weights over NCCL: {exc}") from exc
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


def ready_to_send(bucket: WeightsPiece, way: Way) -> list[tuple[str, Tensor]]:
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
