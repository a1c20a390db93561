"""A plan of memory on the CPU is what the process of a run takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stages.tiny import TREE
from verizero.pipeline.commands.plan.estimate import largest
from verizero.pipeline.commands.plan.on_cpu import LOST, allocator_here, lines_on_cpu, plans_on_cpu
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.merge import merge
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.report.memory import noted_peak

SIZES = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6, "num_attention_heads": 8,
         "num_key_value_heads": 4, "max_position_embeddings": 64, "tie_word_embeddings": True}  # fmt: skip
IN_BITS = {"train": {"lora": {"rank": 8}}, "model": {"quantize": "nf4"}}


def of(more: dict[str, Any], output: Path = Path("runs")) -> RunConfig:
    """A recipe whose micro-batches are full."""
    changes = {
        "stages": ["sft"],
        "output": str(output),
        "model": {"create": {"config": SIZES}},
        "train": {"micro_batch_tokens": 1024},
        "sft": {"steps": 3, "batch_size": 160},
    }
    return parse(merge(merge(TREE, changes), more))


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, IN_BITS], ids=["all weights", "adapters on a base in four bits"])
def test_the_peak_of_a_process_is_near_to_the_plan(more: dict[str, Any], tmp_path: Path) -> None:
    config = of(more, tmp_path)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(json.loads(config.model_dump_json(exclude_unset=True))))
    command = [sys.executable, "-m", "verizero.pipeline.cli", "train", str(tmp_path / "recipe.yaml"), "--no-prefect"]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    planned = largest(plans_on_cpu(config, allocator_here())["sft"]) / 2**20
    # Which tensors fit where others were differs from run to run and from one C library to the next.
    assert noted_peak(tmp_path / config.name) == pytest.approx(planned, rel=0.25)


def test_four_bits_and_moments_in_eight_save_what_they_are() -> None:
    plain, bits, eight = (of(more) for more in ({}, IN_BITS, {"sft": {"optimizer": {"kind": "adamw_8bit"}}}))
    before, after, moments = (plans_on_cpu(config, "glibc")["sft"]["update"] for config in (plain, bits, eight))
    assert after["weights"] < before["weights"] / 3
    assert "reference" not in before
    assert after["optimizer"] < before["optimizer"] / 20
    assert moments["optimizer"] < before["optimizer"] / 3
    assert before["process"] == after["process"] > 300 << 20
    assert before["lost"] == LOST["glibc"] * (before["activations"] + before["logits"])
    assert lines_on_cpu(plain)[1].startswith("  process")
