"""What needs no vLLM: its arguments and answers in our words, refusals, weights on their way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.models.families import build
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.errors import ConfigError, EngineError
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.vllm_arguments import (
    check_arguments,
    check_heads,
    check_spans,
    device_arguments,
    engine_arguments,
    finish_reason,
    import_vllm,
)
from verizero.pipeline.rollout.weights import buckets, weights_of

KNOWN = ("swap_space", "block_size", "max_num_batched_tokens", "seed", "dtype")
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def test_without_vllm_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "verizero.pipeline.rollout.vllm_worker", raising=False)
    with pytest.raises(ConfigError, match=r"verizero\[gpu\].*make install-engines"):
        import_vllm()


def test_an_argument_that_is_none_of_vllms_is_refused() -> None:
    check_arguments({"block_size": 16}, KNOWN)
    with pytest.raises(ConfigError, match=r"arguments\.blok_size .*block_size"):
        check_arguments({"blok_size": 16}, KNOWN)


def test_an_argument_that_a_recipe_says_elsewhere_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"arguments\.dtype.* model\.dtype"):
        check_arguments({"dtype": "float16"}, KNOWN)


def test_the_recipe_becomes_vllms_arguments() -> None:
    policy = EngineModel.of(build("qwen2", {}), (5, 1, 5))
    assert policy.eos_ids == (1, 5)
    found = engine_arguments(policy, VllmConfig(max_model_tokens=48), 7)
    assert (found["max_model_len"], found["max_num_seqs"], found["dtype"]) == (48, 7, "float32")
    assert found["logprobs_mode"] == "processed_logprobs"
    assert engine_arguments(policy, VllmConfig(), 7)["max_model_len"] == 64
    of_shards = EngineModel.of(policy.model, (1,), dtype=torch.bfloat16)  # as FSDP's, whose weights are float32
    assert engine_arguments(of_shards, VllmConfig(), 7)["dtype"] == "bfloat16"


def test_a_response_that_neither_stopped_nor_was_cut_is_no_response() -> None:
    assert (finish_reason("stop"), finish_reason("length")) == ("stop", "length")
    for said in ("abort", "error", None):
        with pytest.raises(EngineError, match=repr(said)):
            finish_reason(said)


def test_every_span_of_a_response_is_of_the_published_version() -> None:
    check_spans([("3", 0, 5)], "3")
    with pytest.raises(EngineError, match=r"version 2.* version 3"):
        check_spans([("3", 0, 5), ("2", 5, 9)], "3")
    with pytest.raises(EngineError, match="no version"):
        check_spans([], "3")


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("qwen2", {"tie_word_embeddings": True}),
        ("llama", {"tie_word_embeddings": False}),
        ("qwen3_moe", {**EXPERTS, "tie_word_embeddings": False}),
    ],
    ids=["tied", "untied", "experts"],
)
def test_weights_are_named_and_shaped_as_in_a_saved_folder(
    model_type: str, changes: dict[str, object], tmp_path: Path
) -> None:
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


def test_buckets_hold_all_weights_in_order_and_no_more_than_their_size() -> None:
    sizes = {"a": 1, "b": 2, "huge": 50, "c": 3, "d": 4, "e": 1}
    weights = [(name, torch.zeros(n)) for name, n in sizes.items()]
    found = [[name for name, _ in bucket] for bucket in buckets(weights, 4 * 8)]
    assert found == [["a", "b"], ["huge"], ["c", "d", "e"]]
    assert list(buckets([], 8)) == []


def test_heads_that_the_cpu_build_does_not_compute_are_refused_at_once() -> None:
    config = build("qwen2", {}).config
    check_heads(config, None)
    check_heads(config, [8, 32])
    with pytest.raises(ConfigError, match=r" 8 .*32, 64.*rollout\.engine: torch"):
        check_heads(config, [32, 64])


def test_on_the_cpu_a_prompt_is_computed_in_one_go() -> None:
    policy = EngineModel.of(build("qwen2", {}), (1,))
    found = device_arguments(policy, VllmConfig(kv_cache_gib=0.5, max_model_tokens=9000), 64, on_cpu=True)
    assert found == {
        "enforce_eager": True,
        "kv_cache_memory_bytes": 2**29,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 9000,
    }
    assert device_arguments(policy, VllmConfig(), 5000, on_cpu=True)["max_num_batched_tokens"] == 5000


def test_gpus_have_graphs_unless_the_recipe_says_no() -> None:
    policy = EngineModel.of(build("qwen2", {}), (1,))
    found = device_arguments(policy, VllmConfig(gpu_memory_share=0.3), 64, on_cpu=False)
    assert found == {"gpu_memory_utilization": 0.3, "enforce_eager": False}
    assert device_arguments(policy, VllmConfig(enforce_eager=True), 64, on_cpu=False)["enforce_eager"] is True
    assert device_arguments(policy, VllmConfig(enforce_eager=False), 64, on_cpu=True)["enforce_eager"] is False
