"""Weights to servers over NCCL: which way is chosen, and what a server gets from vLLM's sender."""

from concurrent.futures import ThreadPoolExecutor

import torch

from tests.models.families import build
from tests.rollout.fake_server import FakeServer
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.vllm_remote import NcclChannel, RemoteServer, ready_to_send

WEIGHTS = [("a", torch.ones(2, 3)), ("b", torch.zeros(4, dtype=torch.bfloat16))]


class Sender:
    """vLLM's sender as its source (0.32) has it: one call sends all that the source has, from start to finish."""

    def __init__(self, client, source):
        self.client, self.source = client, source
        self.sent: list[list[str]] = []
        self.is_open = True

    def send_weights(self):
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

    def shutdown(self):
        self.is_open = False


class Worker:
    """The module that imports vLLM, as far as senders are made."""

    def __init__(self):
        self.senders: list[Sender] = []
        self.worlds: list[int] = []

    def metadata_of(self, bucket):
        return [(name, tensor.dtype, tensor.shape) for name, tensor in bucket]

    def open_nccl(self, client, source, address, port, world_size, buffer_bytes):
        self.worlds.append(world_size)
        client.init_weight_transfer_engine({"master_address": address, "master_port": port, "world_size": world_size})
        self.senders.append(Sender(client, source))
        return self.senders[-1]


def server_of(fake: FakeServer, worker: Worker) -> RemoteServer:
    policy, config = EngineModel.of(build("qwen2", {}), (1,)), VllmConfig(request_timeout_s=20, health_timeout_s=20)
    return RemoteServer(fake.url, policy, config, lambda server: NcclChannel(server, torch.device("cpu"), 64, worker))


def test_an_update_begins_and_ends_once_whatever_the_number_of_pieces():
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


def test_a_server_that_was_restarted_is_met_again():
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
