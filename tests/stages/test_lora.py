"""A recipe with adapters: what is published and saved is plain, and an interrupted run resumes the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.stages.recorded import EXPERTS
from tests.stages.sessions import train_model
from tests.stages.tiny import tiny
from verizero.pipeline.models.load import load_model

LORA = [
    "train.lora={rank: 4, alpha: 8}",
    "sft.steps=6",
    "rl.rounds=2",
    "rl.steps_per_round=1",
    "rl.select.keep=all",
    "sft.optimizer.learning_rate=0.02",
    "rollout.max_response_tokens=8",
    "data.evaluation=[]",
]

EXPERT, ROUTER = "model.layers.0.mlp.experts.down_proj", "model.layers.0.mlp.gate.weight"


@pytest.mark.integration
@pytest.mark.parametrize("policy", [(), EXPERTS], ids=["dense", "mixture"])
def test_a_run_with_adapters_ends_in_a_plain_model_and_goes_on_the_same(
    tmp_path: Path, policy: tuple[str, ...]
) -> None:
    config = tiny(overrides=[*LORA, *policy, "checkpoint.keep=99"])
    whole = tmp_path / "whole"
    train_model(config, tmp_path, whole, "never")
    wanted = dict(load_model(str(whole / "model")).named_parameters())
    assert not any("lora" in name for name in wanted)
    steps = sorted((whole / "checkpoints").iterdir())
    assert (steps[0] / "adapter" / "adapter_model.safetensors").is_file()
    for broken_at in (0, len(steps) - 2):
        other = tmp_path / f"broken{broken_at}"
        shutil.copytree(whole, other)
        for later in sorted((other / "checkpoints").iterdir())[broken_at + 1 :]:
            shutil.rmtree(later)
        train_model(config, tmp_path, other, "must")
        ends = dict(load_model(str(other / "model")).named_parameters())
        assert all(torch.equal(ends[name], w) for name, w in wanted.items())
    first = dict(load_model(str(steps[0] / "model")).named_parameters())
    assert any(not torch.equal(first[name], w) for name, w in wanted.items())
    assert torch.equal(first["model.embed_tokens.weight"], wanted["model.embed_tokens.weight"])
    if policy:
        assert not torch.equal(first[EXPERT], wanted[EXPERT]), "the experts learn"
        assert torch.equal(first[ROUTER], wanted[ROUTER])
