"""What needs no vLLM: its arguments and answers in our words, refusals, weights on their way."""

import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.models.families import build
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import ConfigError, EngineError
from verizero.pipeline.rollout.engine_model import EngineModel, Records
from verizero.pipeline.rollout.vllm_arguments import (
    check_arguments,
    check_heads,
    check_spans,
    device_arguments,
    engine_arguments,
    environments,
    finish_reason,
    import_vllm,
    visible,
)
from verizero.pipeline.rollout.vllm_engine import local_rank_of
from verizero.pipeline.rollout.vllm_records import choose_runner
from verizero.pipeline.rollout.vllm_remote import way_of
from verizero.pipeline.rollout.weights import buckets, weights_of

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
PLACED, VISIBLE = VllmConfig(servers=2, devices=((2,), (3,))), {"CUDA_VISIBLE_DEVICES": "4, GPU-5"}
KNOWN = ("swap_space", "block_size", "max_num_batched_tokens", "seed", "dtype")
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


QWEN = build("qwen2", {}).config


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: check_arguments({"blok_size": 16}, KNOWN), r"arguments\.blok_size .*block_size"),
        (lambda: check_arguments({"dtype": "float16"}, KNOWN), r"arguments\.dtype.* model\.dtype"),
        (lambda: check_heads(QWEN, [32, 64]), r" 8 .*32, 64.*rollout\.engine: torch"),
        (lambda: way_of(VllmConfig(transfer="nccl"), CPU), "transfer=nccl moves .* GPU, and the policy is on cpu"),
        (
            lambda: visible((2,), 8, VISIBLE),
            r"devices names GPU 2, and rank 0 sees 2 \(CUDA_VISIBLE_DEVICES=4, GPU-5\)",
        ),
        (lambda: visible((1,), 1, {}), "GPU 1, and rank 0 sees 1 on this machine"),
        (lambda: environments(VllmConfig(servers=2), False, 8), "the 2 servers would start on GPU 0 next to rank 0"),
        (lambda: environments(PLACED, True, 0), "vLLM's build here is the CPU's"),
        (lambda: local_rank_of(torch.device("cuda", 1), False).__enter__(), "CUDA_VISIBLE_DEVICES=1"),
        (lambda: choose_runner(Records(sampling=True), "no V2"), r"keep_sampling.*no V2.*rollout\.engine: torch"),
        (lambda: choose_runner(Records(routing=True), "no V2"), r"keep_routing.*no V2.*rollout\.engine: torch"),
        *((lambda said=said: finish_reason(said), repr(said)) for said in ("abort", "error", None)),
        (lambda: check_spans([("3", 0, 5), ("2", 5, 9)], "3"), r"version 2.* version 3"),
        (lambda: check_spans([], "3"), "no version"),
        (import_vllm, r"\.\[gpu\].*make install-engines"),
    ],
)
def test_what_it_does_not_do_is_refused_with_its_remedy(call, words, monkeypatch):
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "verizero.pipeline.rollout.vllm_worker", raising=False)
    with pytest.raises((ConfigError, EngineError), match=words):
        call()


def test_what_it_does_is_not_refused(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    check_arguments({"block_size": 16}, KNOWN)
    check_heads(QWEN, None)
    check_heads(QWEN, [8, 32])
    choose_runner(Records(), "no V2")
    check_spans([("3", 0, 5)], "3")
    assert (finish_reason("stop"), finish_reason("length")) == ("stop", "length")
    assert [visible((6, 7), 8, {}), visible((1,), 2, VISIBLE)] == ["6,7", "GPU-5"]
    assert environments(PLACED, False, 4) == [{"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "3"}]
    assert environments(VllmConfig(servers=2), True, 0) == [{}, {}]


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
def test_the_way_of_weights_follows_from_where_the_policy_and_the_servers_are(config, device, way):
    assert way_of(VllmConfig(**config), device) == way


def test_the_recipe_becomes_vllms_arguments():
    """Others of them in test_vllm_on_gpus.py."""
    policy = EngineModel.of(build("qwen2", {}), (5, 1, 5))
    assert policy.eos_ids == (1, 5)
    assert engine_arguments(policy, VllmConfig(), 7)["max_model_len"] == 64
    assert engine_arguments(policy, VllmConfig(max_model_tokens=48), 7)["max_model_len"] == 48
    assert device_arguments(policy, VllmConfig(gpu_memory_share=0.3), 64, on_cpu=False) == {
        "gpu_memory_utilization": 0.3,
        "enforce_eager": False,
    }
    assert device_arguments(policy, VllmConfig(kv_cache_gib=0.5, max_model_tokens=9000), 64, on_cpu=True) == {
        "enforce_eager": True,
        "kv_cache_memory_bytes": 2**29,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 9000,
    }, "on the CPU a prompt is computed in one go"
    assert device_arguments(policy, VllmConfig(), 5000, on_cpu=True)["max_num_batched_tokens"] == 5000
    assert device_arguments(policy, VllmConfig(enforce_eager=False), 64, on_cpu=True)["enforce_eager"] is False


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("qwen2", {"tie_word_embeddings": True}),
        ("llama", {"tie_word_embeddings": False}),
        ("qwen3_moe", {**EXPERTS, "tie_word_embeddings": False}),
    ],
    ids=["tied", "untied", "experts"],
)
def test_weights_are_named_and_shaped_as_in_a_saved_folder(model_type, changes, tmp_path):
    model = build(model_type, changes)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    found = dict(weights_of(model)())
    assert set(found) == set(saved)
    assert all(torch.equal(found[name], saved[name]) for name in saved)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    again = dict(weights_of(model)())
    assert not any(torch.equal(again[name], saved[name]) for name in saved)


def test_buckets_hold_all_weights_in_order_and_no_more_than_their_size():
    sizes = {"a": 1, "b": 2, "huge": 50, "c": 3, "d": 4, "e": 1}
    weights = [(name, torch.zeros(n)) for name, n in sizes.items()]
    found = [[name for name, _ in bucket] for bucket in buckets(weights, 4 * 8)]
    assert found == [["a", "b"], ["huge"], ["c", "d", "e"]]
    assert list(buckets([], 8)) == []
