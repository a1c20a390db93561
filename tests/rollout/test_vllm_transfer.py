"""Weights to servers over NCCL and IPC: which way is chosen, and what a server gets from vLLM's sender."""

from __future__ import annotations

import pickle
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.models.families import build
from tests.rollout.fake_server import FakeServer
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.server_client import ServerLost
from verizero.pipeline.rollout.vllm_process import environments, visible
from verizero.pipeline.rollout.vllm_remote import RemoteServer
from verizero.pipeline.rollout.vllm_transfer import VllmChannel, ready_to_send, way_of

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
WEIGHTS = [("a", torch.ones(2, 3)), ("b", torch.zeros(4, dtype=torch.bfloat16))]


@pytest.mark.parametrize(
    ("config", "device", "ranks", "way"),
    [
        ({}, CPU, 1, "gloo"),
        ({}, GPU, 1, "nccl"),
        ({"devices": ((6,), (7,)), "servers": 2}, GPU, 6, "nccl"),
        ({"devices": ((0,),)}, GPU, 1, "ipc"),
        ({"devices": ((0,), (1,))}, GPU, 1, "gloo"),
        ({"devices": ((0,),)}, GPU, 2, "gloo"),
        ({"transfer": "folder"}, GPU, 1, "folder"),
        ({"transfer": "gloo"}, GPU, 1, "gloo"),
    ],
)
def test_the_way_follows_from_where_the_policy_and_the_servers_are(
    config: dict[str, Any], device: torch.device, ranks: int, way: str
) -> None:
    assert way_of(VllmConfig(**config), device, ranks) == way


@pytest.mark.parametrize(
    ("config", "device", "ranks", "named"),
    [
        ({"transfer": "nccl"}, CPU, 1, "transfer=nccl moves weights from a GPU, and the policy is on cpu"),
        ({"transfer": "ipc"}, CPU, 1, "transfer=ipc moves weights from a GPU"),
        ({"transfer": "ipc"}, GPU, 2, "transfer=ipc .* 2 ranks; set transfer: nccl"),
    ],
)
def test_a_way_that_cannot_work_is_refused(
    config: dict[str, Any], device: torch.device, ranks: int, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        way_of(VllmConfig(**config), device, ranks)


def test_each_server_sees_its_own_gpus_by_the_names_that_this_process_has_for_them() -> None:
    assert visible((6, 7), 8, {}) == "6,7"
    assert visible((1,), 2, {"CUDA_VISIBLE_DEVICES": "4, GPU-5"}) == "GPU-5"
    with pytest.raises(ConfigError, match=r"devices names GPU 2, and rank 0 sees 2 \(CUDA_VISIBLE_DEVICES=4,5\)"):
        visible((2,), 8, {"CUDA_VISIBLE_DEVICES": "4,5"})
    with pytest.raises(ConfigError, match="GPU 1, and rank 0 sees 1 on this machine"):
        visible((1,), 1, {})


def test_servers_are_placed_where_there_are_gpus_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    placed = VllmConfig(servers=2, devices=((2,), (3,)))
    assert environments(placed, "nccl", False, 4) == [{"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "3"}]
    (shared,) = environments(VllmConfig(devices=((0,),)), "ipc", False, 1)
    assert shared == {"CUDA_VISIBLE_DEVICES": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    assert environments(VllmConfig(servers=2), "gloo", True, 0) == [{}, {}]
    with pytest.raises(ConfigError, match="the 2 servers would start on GPU 0 next to rank 0"):
        environments(VllmConfig(servers=2), "nccl", False, 8)
    with pytest.raises(ConfigError, match="vLLM's build here is the CPU's"):
        environments(placed, "gloo", True, 0)


class Sender:
    """vLLM's sender as its source (0.32) has it: one call sends all that the source has, from start to finish."""

    def __init__(self, client: Any, source: Any, handles: bool, buffer_bytes: int) -> None:
        self.client, self.source, self.handles = client, source, handles
        self.packed_buffer_size_bytes = buffer_bytes
        self.sent: list[tuple[int, list[str]]] = []
        self.is_open = True

    def send_weights(self) -> None:
        meta = self.source.metadata()
        info = {
            "names": [m[0] for m in meta],
            "dtype_names": [str(m[1]).split(".")[-1] for m in meta],
            "shapes": [list(m[2]) for m in meta],
            **({"ipc_handles": {"GPU-1": (1, b"x")}, "ipc_handles_pickled": None} if self.handles else {}),
        }
        self.client.start_weight_update()
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(self.client.update_weights, info)
            self.sent.append((self.packed_buffer_size_bytes, [name for name, _ in self.source]))
            taken.result()
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        self.is_open = False


class Worker:
    """The module that imports vLLM, as far as senders are made."""

    def __init__(self) -> None:
        self.senders: list[Sender] = []
        self.worlds: list[int] = []

    def metadata_of(self, bucket: Any) -> list[Any]:
        return [(name, tensor.dtype, tensor.shape) for name, tensor in bucket]

    def open_nccl(self, client: Any, source: Any, address: str, port: int, world_size: int, buffer_bytes: int) -> Any:
        self.worlds.append(world_size)
        client.init_weight_transfer_engine({"master_address": address, "master_port": port, "world_size": world_size})
        self.senders.append(Sender(client, source, False, buffer_bytes))
        return self.senders[-1]

    def open_ipc(self, client: Any, source: Any, buffer_bytes: int) -> Any:
        client.init_weight_transfer_engine({"packed": True})
        self.senders.append(Sender(client, source, True, buffer_bytes))
        return self.senders[-1]


def server_of(fake: FakeServer, worker: Worker, way: Any) -> RemoteServer:
    policy, config = EngineModel.of(build("qwen2", {}), (1,)), VllmConfig(request_timeout_s=20, health_timeout_s=20)
    return RemoteServer(fake.url, policy, config, lambda server: VllmChannel(server, way, CPU, 64, worker))


@pytest.mark.parametrize("way", ["nccl", "ipc"])
def test_an_update_begins_and_ends_once_whatever_the_number_of_pieces(way: str) -> None:
    with FakeServer() as fake:
        worker = Worker()
        server = server_of(fake, worker, way)
        for version in ("1@run", "2@run"):
            for bucket in (WEIGHTS, WEIGHTS[:1]):
                server.take_weights(ready_to_send(bucket, way))  # type: ignore[arg-type]
            server.confirm(version)
            assert server.version == version
        server.close()
    paths = [path for path, _ in fake.posted]
    once = [
        "/start_weight_update",
        "/update_weights",
        "/update_weights",
        "/finish_weight_update",
        "/reset_prefix_cache",
    ]
    assert paths == ["/collective_rpc", "/init_weight_transfer_engine", *once, *once]
    (sender,) = worker.senders
    assert worker.worlds == ([2] if way == "nccl" else [])
    sizes = (32, 24) if way == "ipc" else (64, 64)
    assert sender.sent == [(sizes[0], ["a", "b"]), (sizes[1], ["a"])] * 2
    assert not sender.is_open
    told = next(body["update_info"] for path, body in fake.posted if path == "/update_weights")
    assert told["names"] == ["a", "b"]
    assert told["dtype_names"] == ["float32", "bfloat16"]
    assert told["shapes"] == [[2, 3], [4]]
    if way == "ipc":
        assert pickle.loads(b64decode(told["ipc_handles_pickled"])) == {"GPU-1": (1, b"x")}
    assert "ipc_handles" not in told


def test_a_server_that_was_restarted_is_met_again() -> None:
    with FakeServer() as fake:
        worker = Worker()
        server = server_of(fake, worker, "nccl")
        server.start_update()
        server.confirm("1@run")
        assert not server.was_restarted()
        fake.start_again()
        assert server.was_restarted()
        server.start_update()
        assert len(worker.senders) == 2


def test_a_server_that_refuses_a_piece_is_lost() -> None:
    with FakeServer("fails") as fake, pytest.raises(ServerLost, match="init_weight_transfer_engine: status 500"):
        server_of(fake, Worker(), "nccl").start_update()
