"""Weights to servers over NCCL: which way is chosen, and what a server gets from vLLM's sender."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.models.families import build
from tests.rollout.fake_server import FakeServer
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.vllm_arguments import environments, visible
from verizero.pipeline.rollout.vllm_remote import NcclChannel, RemoteServer, ready_to_send, way_of

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
WEIGHTS = [("a", torch.ones(2, 3)), ("b", torch.zeros(4, dtype=torch.bfloat16))]


@pytest.mark.parametrize(
    ("config", "device", "way"),
    [
        ({}, CPU, "gloo"),
        ({}, GPU, "nccl"),
        ({"devices": ((6,), (7,)), "servers": 2}, GPU, "nccl"),
        ({"devices": ((0,), (1,)), "servers": 2}, GPU, "gloo"),
        ({"transfer": "gloo"}, GPU, "gloo"),
    ],
)
def test_the_way_follows_from_where_the_policy_and_the_servers_are(
    config: dict[str, Any], device: torch.device, way: str
) -> None:
    assert way_of(VllmConfig(**config), device) == way


def test_a_way_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="transfer=nccl moves weights from a GPU, and the policy is on cpu"):
        way_of(VllmConfig(transfer="nccl"), CPU)


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
    assert environments(placed, False, 4) == [{"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "3"}]
    assert environments(VllmConfig(servers=2), True, 0) == [{}, {}]
    with pytest.raises(ConfigError, match="the 2 servers would start on GPU 0 next to rank 0"):
        environments(VllmConfig(servers=2), False, 8)
    with pytest.raises(ConfigError, match="vLLM's build here is the CPU's"):
        environments(placed, True, 0)


class Sender:
    """vLLM's sender as its source (0.32) has it: one call sends all that the source has, from start to finish."""

    def __init__(self, client: Any, source: Any) -> None:
        self.client, self.source = client, source
        self.sent: list[list[str]] = []
        self.is_open = True

    def send_weights(self) -> None:
        meta = self.source.metadata()
        info = {
            "names": [m[0] for m in meta],
            "dtype_names": [str(m[1]).split(".")[-1] for m in meta],
            "shapes": [list(m[2]) for m in meta],
        }
        self.client.start_weight_update()
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(self.client.update_weights, info)
            self.sent.append([name for name, _ in self.source])
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
        self.senders.append(Sender(client, source))
        return self.senders[-1]


def server_of(fake: FakeServer, worker: Worker) -> RemoteServer:
    policy, config = EngineModel.of(build("qwen2", {}), (1,)), VllmConfig(request_timeout_s=20, health_timeout_s=20)
    return RemoteServer(fake.url, policy, config, lambda server: NcclChannel(server, CPU, 64, worker))


def test_an_update_begins_and_ends_once_whatever_the_number_of_pieces() -> None:
    with FakeServer() as fake:
        worker = Worker()
        server = server_of(fake, worker)
        for version in ("1@run", "2@run"):
            for bucket in (WEIGHTS, WEIGHTS[:1]):
                server.take_weights(ready_to_send(bucket, "nccl"))
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
    assert worker.worlds == [2]
    assert sender.sent == [["a", "b"], ["a"]] * 2
    assert not sender.is_open
    told = next(body["update_info"] for path, body in fake.posted if path == "/update_weights")
    assert told["names"] == ["a", "b"]
    assert told["dtype_names"] == ["float32", "bfloat16"]
    assert told["shapes"] == [[2, 3], [4]]


def test_a_server_that_was_restarted_is_met_again() -> None:
    with FakeServer() as fake:
        worker = Worker()
        server = server_of(fake, worker)
        server.start_update()
        server.confirm("1@run")
        assert not server.was_restarted()
        fake.start_again()
        assert server.was_restarted()
        server.start_update()
        assert len(worker.senders) == 2
