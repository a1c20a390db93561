"""The engine on GPUs, before a double of vLLM: its executor, its device, its sleep and the weights after it."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.fake_device_runs import EXPERTS
from tests.models.families import build
from tests.rollout.stub_vllm import StubVllm
from tests.stages.tiny import tiny
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.engine import Request, Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.vllm_engine import VllmEngine, local_rank_of
from verizero.pipeline.run.build import build_backend, build_engine

REQUESTS = [Request((3, 4), (1,))]
PLAIN = VllmConfig()


def engine_of(config: VllmConfig = PLAIN) -> tuple[VllmEngine, StubVllm, Any]:
    model, stub = build("qwen2", {}), StubVllm()
    return VllmEngine(EngineModel.of(model, (5,)), config, 4, stub), stub, model


@pytest.fixture
def two_ranks():
    """The default group of a launched world of two, of which this process is the second."""
    store = dist.HashStore()
    dist.init_process_group("fake", rank=1, world_size=2, store=store)
    yield
    dist.destroy_process_group()


ARGUMENTS = ("dtype", "gpu_memory_utilization", "max_model_len", "max_num_seqs", "tensor_parallel_size", "seed",
             "enable_sleep_mode", "enforce_eager", "distributed_executor_backend")  # fmt: skip
TABLE = [
    # ranks, backend, model, model.dtype, changes of rollout.vllm -> the arguments above
    (1, "torch", "qwen2", "float32", {}, ("float32", 0.4, 40, 16, 1, 0, True, False, None)),
    (1, "fsdp", "qwen3_moe", "bfloat16", {}, ("bfloat16", 0.4, 40, 16, 1, 0, True, False, None)),
    (1, "deepspeed", "qwen2", "bfloat16", {}, ("bfloat16", 0.4, 40, 16, 1, 0, True, False, None)),
    (2, "torch", "qwen3_moe", "bfloat16", {}, ("bfloat16", 0.4, 40, 16, 1, 0, True, False, "external_launcher")),
    (2, "torch", "qwen2", "bfloat16", {"tensor_parallel": 2, "gpu_memory_share": 0.6, "max_model_tokens": 50},
     ("bfloat16", 0.6, 50, 16, 2, 0, True, False, "external_launcher")),
    (8, "torch", "qwen2", "float32", {"sleep": False, "enforce_eager": True},
     ("float32", 0.4, 40, 16, 1, 0, False, True, "external_launcher")),
    (8, "torch", "qwen3_moe", "bfloat16", {"tensor_parallel": 4},
     ("bfloat16", 0.4, 40, 16, 4, 0, True, False, "external_launcher")),
]  # fmt: skip


@pytest.mark.run
@pytest.mark.parametrize(("size", "backend", "model_type", "dtype", "changes", "wanted"), TABLE)
def test_what_a_recipe_gives_to_vllm(size, backend, model_type, dtype, changes, wanted, monkeypatch):
    if size > 1:
        dist.init_process_group("fake", rank=0, world_size=size, store=dist.HashStore())
    stub = StubVllm()
    monkeypatch.setattr("verizero.pipeline.rollout.vllm_engine.import_vllm", lambda: stub)
    zero = {"zero": 1} if backend == "deepspeed" else {}
    launch = {"kind": "torchrun", "gpus_per_node": size} if size > 1 else {}
    config = tiny(
        {
            "model": {"dtype": dtype},
            "rollout": {"engine": "vllm", "max_rows": 16, "vllm": changes},
            "train": {"backend": backend, "device": "cpu", **zero},
            "launch": launch,
        }
    )
    try:
        model = build(model_type, EXPERTS if model_type == "qwen3_moe" else {}, 0, getattr(torch, dtype))
        engine = build_engine(config, model, SimpleNamespace(eos_token_id=5), build_backend(config, model), longest=40)
        engine.close()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    assert tuple(stub.arguments.get(name) for name in ARGUMENTS) == wanted


@pytest.mark.usefixtures("two_ranks")
def test_vllm_takes_the_trainers_gpu_and_not_the_one_of_the_ranks_number(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "7")
    with local_rank_of(torch.device("cuda", 3), on_cpu=False):
        assert os.environ["LOCAL_RANK"] == "3"
    assert os.environ["LOCAL_RANK"] == "7"
    monkeypatch.delenv("LOCAL_RANK")
    with local_rank_of(torch.device("cpu"), on_cpu=True):
        assert os.environ["LOCAL_RANK"] == "0"
    assert "LOCAL_RANK" not in os.environ


@pytest.mark.run
def test_the_engine_sleeps_from_the_start_and_drops_its_weights():
    engine, stub, _ = engine_of()
    assert stub.calls == [("sleep", 2)]
    with pytest.raises(EngineError, match="publish them first"):
        engine.generate(REQUESTS, Sampling(1))
    engine.publish(0)
    engine.generate(REQUESTS, Sampling(1))
    assert stub.calls[1:] == [("wake", "weights"), "load_named", ("wake", "kv_cache"), "generate"]
    engine.close()


@pytest.mark.run
def test_without_a_publish_the_same_version_is_sent_again():
    engine, stub, _ = engine_of()
    engine.publish(4)
    sent = stub.weights
    engine.rest()
    engine.rest()
    assert stub.calls.count(("sleep", 2)) == 2
    engine.generate(REQUESTS, Sampling(1))
    assert (engine.version, stub.calls.count("load_named")) == (4, 2)
    assert all(torch.equal(sent[name], stub.weights[name]) for name in sent)
    engine.close()


@pytest.mark.run
def test_an_engine_that_may_not_sleep_stays_awake():
    engine, stub, _ = engine_of(VllmConfig(sleep=False))
    engine.publish(0)
    engine.rest()
    assert stub.calls == ["load_named"]
    assert stub.arguments["enable_sleep_mode"] is False
    engine.close()
