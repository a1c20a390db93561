"""The recipe of a pretrained model, in a form of seconds: other engines, ranks and adapters, from a tiny GGUF file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.launch.words import folder_of, words_of
from tests.models.gguf_files import tiny_llama, write_gguf
from tests.rollout.real_vllm import needs_vllm
from tests.train.rank_group import installed
from tests.warm import VLLM as WITH_VLLM
from tests.warm import warm
from verizero.pipeline.commands.plan.estimate import plan
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import RECIPES
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.launch import launch
from verizero.pipeline.models.load import load_model, load_tokenizer
from verizero.pipeline.report.files import read_rollouts, read_run
from verizero.pipeline.report.progress import Silent
from verizero.pipeline.whole_run import train

pytest.importorskip("gguf")

RECIPE = RECIPES / "smollm2.yaml"
ROOT = Path(__file__).resolve().parents[2]
SECONDS = (
    *("rl.rounds=1", "rl.steps_per_round=2", "rl.prompts_per_step=2", "rl.group_size=2", "rl.select.keep=all"),
    *("rollout.max_response_tokens=4", "evaluation.limit=2", "evaluation.k=2", "evaluation.every_rounds=1"),
    *("train.threads=1", "train.device=cpu", "scoring.overlap=false", "report.trackers=[]"),
)
"""Changes that make the recipe one of seconds with a tiny model, whose answers are all wrong."""
VLLM = ("rollout.engine=vllm", "rollout.vllm.kv_cache_gib=0.1")
TWO_RANKS = ("train.backend=deepspeed", "train.zero=2", "launch.kind=local", "launch.gpus_per_node=2")


def of_seconds(folder: Path, changes: Sequence[str], head_width: int = 8) -> tuple[RunConfig, list[str]]:
    """Return the recipe that starts from a tiny file in `folder`, and all its changes."""
    file = write_gguf(folder / "tiny.gguf", tiny_llama(head_width=head_width), quantized=True)
    all_changes = [*SECONDS, f"model.path={file}", f"output={folder}", *changes]
    return load_recipe(RECIPE, all_changes), all_changes


def assert_whole(folder: Path) -> None:
    """Both domains were trained and evaluated, and the folder that is left answers in plain transformers."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["domains"].keys() == {"extraction", "instructions"}
    assert [step.metrics["length/mean"] for step in read_run(folder).steps] == [4, 4]
    assert {sample.domain for sample in read_rollouts(folder)} == {"extraction", "instructions"}
    tokenizer, model = load_tokenizer(str(folder / "model")), load_model(str(folder / "model"))
    ids = tokenizer("assistant: ", return_tensors="pt")
    assert model.generate(**ids, max_new_tokens=2, do_sample=False).shape[1] > ids["input_ids"].shape[1]


@pytest.mark.integration
@pytest.mark.parametrize("changes", [(), ("train.lora={rank: 2}",)], ids=["whole", "lora"])
def test_it_runs_from_a_tiny_file_with_all_weights_or_adapters(changes: Sequence[str], tmp_path: Path) -> None:
    recipe, _ = of_seconds(tmp_path, changes)
    train(recipe, RECIPES, folder_of(recipe), "auto", Silent())
    assert_whole(folder_of(recipe))


@pytest.mark.integration
@pytest.mark.slow
@needs_vllm
def test_it_runs_with_vllm(tmp_path: Path) -> None:
    recipe, _ = of_seconds(tmp_path, VLLM, head_width=32)
    warm(WITH_VLLM).call(train, recipe, RECIPES, folder_of(recipe), "auto", Silent())
    assert_whole(folder_of(recipe))


@installed
@pytest.mark.integration
@pytest.mark.slow
def test_it_runs_with_deepspeed_on_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recipe, changes = of_seconds(tmp_path, TWO_RANKS)
    warm().call(launch, recipe.launch, words_of(RECIPE, changes), folder_of(recipe), "verizero.pipeline.cli")
    assert_whole(folder_of(recipe))
    assert json.loads((folder_of(recipe) / "run.json").read_text())["num_ranks"] == 2


@pytest.mark.parametrize(
    "changes",
    [(), VLLM, TWO_RANKS, ("train.lora={rank: 16}",), ("train.device=cuda", "model.dtype=bfloat16")],
    ids=["plain", "vllm", "deepspeed", "lora", "cuda"],
)
def test_it_is_a_recipe_for_other_engines_ranks_and_devices_and_fits_a_gpu(
    changes: Sequence[str], tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    recipe = load_recipe(RECIPE, [f"model.path={file}", f"output={tmp_path}", *changes])
    assert recipe.rl == load_recipe(RECIPE, []).rl
    made = plan(recipe, recipe.launch.gpus_per_node, "rtx4090")
    assert made.fits


def test_online_it_takes_the_weights_before_they_were_quantised() -> None:
    recipe = load_recipe(RECIPE, ["model.path=HuggingFaceTB/SmolLM2-135M-Instruct"])
    assert recipe.model.path == "HuggingFaceTB/SmolLM2-135M-Instruct"
