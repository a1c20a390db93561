"""A recipe with adapters: they alone are published, what is saved is plain, and a run that is broken ends the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.models.gguf_files import tiny_llama, write_gguf
from tests.stages.recorded import EXPERTS
from tests.stages.sessions import train_model
from tests.stages.tiny import tiny
from verizero.pipeline.models.load import load_model
from verizero.pipeline.report.files import read_run

LORA = [
    "train.lora={rank: 4, alpha: 8}",
    "sft.steps=6",
    "rl.rounds=2",
    "rl.steps_per_round=1",
    "rl.select.keep=all",
    "rl.algorithm.entropy_coef=0.1",  # a gradient where all rewards are equal
    "sft.optimizer.learning_rate=0.02",
    "rollout.max_response_tokens=8",
    "data.evaluation=[]",
]

NF4, BLOCKS = ("model.quantize=nf4",), ("model.quantize=gguf", "model.create=null")
ADAPTER = "adapter/adapter_model.safetensors"
EXPERT, ROUTER = "model.layers.0.mlp.experts.down_proj", "model.layers.0.mlp.gate.weight"


@pytest.mark.integration
@pytest.mark.parametrize("policy", [(), EXPERTS, NF4, BLOCKS], ids=["dense", "mixture", "four bits", "blocks"])
def test_a_run_with_adapters_ends_in_a_plain_model_and_goes_on_the_same(
    tmp_path: Path, policy: tuple[str, ...]
) -> None:
    file = []
    if policy == BLOCKS:
        file = [f"model.path={write_gguf(tmp_path / 'tiny.gguf', tiny_llama(), quantized=True)}", f"output={tmp_path}"]
    config = tiny(overrides=[*LORA, *policy, *file, "checkpoint.keep=99"])
    whole = tmp_path / "whole"
    train_model(config, tmp_path, whole, "never")
    wanted = dict(load_model(str(whole / "model")).named_parameters())
    assert not any("lora" in name for name in wanted)
    steps = sorted((whole / "checkpoints").iterdir())
    for row in [step.metrics for step in read_run(whole).steps if "publish/bytes" in step.metrics]:
        assert row["publish/bytes"] == sum(t.nbytes for t in load_file(steps[0] / ADAPTER).values())
        assert row["mismatch/p99"] < 1e-5, "the engine computes with the trainer's numbers"
    for broken_at in (0, len(steps) - 2):
        other = tmp_path / f"broken{broken_at}"
        shutil.copytree(whole, other)
        for later in sorted((other / "checkpoints").iterdir())[broken_at + 1 :]:
            shutil.rmtree(later)
        train_model(config, tmp_path, other, "must")
        ends = dict(load_model(str(other / "model")).named_parameters())
        assert all(torch.equal(ends[name], w) for name, w in wanted.items())
    if policy in (NF4, BLOCKS):
        assert not any((step / "model").exists() for step in steps), "the base stays where it was"
        return
    first = dict(load_model(str(steps[0] / "model")).named_parameters())
    assert any(not torch.equal(first[name], w) for name, w in wanted.items())
    assert torch.equal(first["model.embed_tokens.weight"], wanted["model.embed_tokens.weight"])
    if policy == EXPERTS:
        assert not torch.equal(first[EXPERT], wanted[EXPERT]), "the experts learn"
        assert torch.equal(first[ROUTER], wanted[ROUTER])
