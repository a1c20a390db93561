"""vLLM's own senders and receivers (0.32), by the arguments that we give them; their GPU calls are doubled."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.rollout.stub_vllm import needs_vllm
from tests.rollout.test_vllm_transfer import WEIGHTS

pytestmark = [pytest.mark.run, needs_vllm]


class Client:
    """Notes what vLLM's sender asks of a server."""

    def __init__(self):
        self.asked: list[Any] = []

    def init_weight_transfer_engine(self, info):
        self.asked.append(("init", info))

    def start_weight_update(self):
        self.asked.append("start")

    def update_weights(self, info):
        self.asked.append(("update", info))

    def finish_weight_update(self, version=None):
        self.asked.append("finish")


def test_vllms_nccl_sender_takes_our_arguments_and_our_pieces(monkeypatch):
    from vllm.distributed.weight_transfer import nccl_engine

    from verizero.pipeline.rollout.vllm_remote import _PieceSource
    from verizero.pipeline.rollout.vllm_worker import NcclTransfer, metadata_of, open_nccl

    sent = []
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: SimpleNamespace(world=info.world_size))
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", lambda iterator, **how: sent.extend(iterator))
    client, piece = Client(), _PieceSource(SimpleNamespace(metadata_of=metadata_of))
    sender = open_nccl(client, piece, "10.0.0.1", 1234, 3, 64)
    (init,) = client.asked
    worker = NcclTransfer.init_info_cls(**init[1])
    assert (worker.master_address, worker.master_port, worker.world_size, worker.rank_offset) == (
        "10.0.0.1",
        1234,
        3,
        1,
    )
    assert (worker.packed, worker.packed_buffer_size_bytes) == (True, 64)
    piece.bucket = WEIGHTS
    sender.send_weights()
    assert [name for name, _ in sent] == ["a", "b"]
    start, (_, told), finish = client.asked[1:]
    assert (start, finish) == ("start", "finish")
    update = NcclTransfer.update_info_cls(**told)
    assert (update.names, update.dtype_names) == (["a", "b"], ["float32", "bfloat16"])


def test_an_update_by_vllms_receivers_must_be_complete(monkeypatch):
    from verizero.pipeline.rollout import vllm_worker

    class Base:
        """One of vLLM's receivers: it loads a piece into `self.model`."""

        def __init__(self, model):
            self.model, self.model_config = model, None

        def receive_weights(self, names):
            self.model.load_weights([(name, torch.ones(1)) for name in names])

        def finish_weight_update(self):
            """Do nothing."""

    class Receiver(vllm_worker.ChecksCompleteness, Base):
        """As ours of NCCL is made."""

    model = SimpleNamespace(load_weights=lambda weights: {name for name, _ in weights})
    monkeypatch.setattr(vllm_worker, "start_reload", lambda model, config: {"a", "b"})
    monkeypatch.setattr(vllm_worker, "finalize_layerwise_reload", lambda model, config: None)
    monkeypatch.setattr(vllm_worker, "on_cpu", lambda: False)
    receiver = Receiver(model)
    receiver.start_weight_update()
    with pytest.raises(RuntimeError, match="ended before any weight came"):
        receiver.finish_weight_update()
    factor = "base_model.model.layer.lora_A.weight"
    receiver.receive_weights([factor])
    receiver.finish_weight_update()
    assert list(model.verizero_factors) == [factor]
    assert not hasattr(model, "verizero_has_weights"), "the model has not been touched"
    receiver.receive_weights(["a"])
    assert receiver.model is model
    with pytest.raises(RuntimeError, match=r"1 weights .* did not come, among them b"):
        receiver.finish_weight_update()
    receiver.receive_weights(["b"])
    receiver.finish_weight_update()


def test_layers_see_vllms_config_while_their_weights_come(monkeypatch):
    from vllm.config import VllmConfig, get_current_vllm_config, get_current_vllm_config_or_none

    from verizero.pipeline.rollout import vllm_worker

    class Worker(vllm_worker.WorkerExtension):
        """One of vLLM's workers."""

        vllm_config = VllmConfig()
        model_runner = SimpleNamespace(get_model=lambda: "model")

    seen = []

    def note(weights):
        seen.append(get_current_vllm_config())

    monkeypatch.setattr(vllm_worker, "Receiver", lambda *_: SimpleNamespace(load_weights=note, finish=lambda: None))
    Worker().load_named([])
    assert seen == [Worker.vllm_config]
    assert get_current_vllm_config_or_none() is None
