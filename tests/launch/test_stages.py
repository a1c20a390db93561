"""Stages around RL on two ranks, by torch and by FSDP, leave what one process leaves: SFT, preferences, samples."""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.source import ROOT
from tests.stages.marks import MARKS
from tests.stages.start import start
from tests.stages.tiny import TREE, tiny
from tests.warm import warm
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.host.disk import read_jsonl
from verizero.pipeline.launch import launch
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.whole_run import train

CALM = {"learning_rate": 1e-3}
SAMPLED = {"prompts": 16, "samples": 6}
SECTIONS = {
    "stages": [
        {"name": "first", "kind": "sft"},
        "preference",
        "reward_model",
        "sample",
        {"name": "last", "kind": "sft", "from": "first", "with": {"demonstrations": "sample"}},
    ],
    "sft": {"steps": 2, "batch_size": 16, "optimizer": CALM},
    "preference": {"loss": {"name": "kto"}, "steps": 2, "batch_size": 5, "sampled": SAMPLED, "optimizer": CALM},
    "reward_model": {"steps": 2, "batch_size": 5, "sampled": SAMPLED, "held_out": 0.5},
    "sample": {"samples": 6},
    "rl": None,
    "evaluation": {"before_training": False},
}


@pytest.fixture(scope="module")
def recipe_and_one(tmp_path_factory):
    """The recipe, which begins with a model that has learned a little, and the folder of its run by one process."""
    folder = tmp_path_factory.mktemp("ranks")
    tree = {**TREE, **SECTIONS, "output": str(folder), "model": {"path": tiny(overrides=[start()]).model.path}}
    tree["data"] = {"train": [{**TREE["data"]["train"][0], "verifier": MARKS}], "evaluation": []}
    tree["train"] = {**TREE["train"], "micro_batch_tokens": 256, "packing": "on"}  # several micro-batches on each rank
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    train(load_recipe(path, ["name=one"]), ROOT, folder / "one", "auto", Progress())
    return path, folder / "one"


@pytest.fixture(scope="module", params=["torch", "fsdp"])
def runs(request, recipe_and_one):
    """The folders of the recipe's run by one process, and by two ranks."""
    path, one = recipe_and_one
    two = one.with_name(request.param)
    changes = [f"name={two.name}", "launch.kind=torchrun", "launch.gpus_per_node=2", f"train.backend={request.param}"]
    words = ["train", str(path), "--no-prefect", *(word for change in changes for word in ("--set", change))]
    warm().call(launch, load_recipe(path, changes).launch, words, two, "tests.launch.rank")
    return one, two


def assert_close(one, two):
    theirs = load_file(one)
    for name, tensor in load_file(two).items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=3e-5)  # AdamW enlarges the rounding of sums


@pytest.mark.run
@pytest.mark.parametrize("stage", ["first", "preference", "reward_model", "sample", "last"])
def test_each_stage_does_on_two_ranks_what_it_does_on_one(runs, stage):
    rows = [[r for r in read_jsonl(f / "metrics.jsonl") if r["stage"] == stage] for f in runs]
    assert len(rows[0]) == len(rows[1]) > 0
    for one, two in zip(*rows, strict=True):
        if abs(one["metrics"].get("margin", 1.0)) < 1e-3:  # rounding decides which margins are above zero
            for row in (one, two):
                del row["metrics"]["accuracy"]
        assert two["metrics"] == pytest.approx(one["metrics"], abs=1e-5)
    ends = [json.loads((newest(f) / "state.json").read_text())["stage_ends"][stage] for f in runs]
    assert_close(*(f / f"checkpoints/{end:08d}/model/model.safetensors" for f, end in zip(runs, ends, strict=True)))


def newest(folder):
    return max(p for p in (folder / "checkpoints").iterdir() if p.name.isdigit())


@pytest.mark.run
def test_stages_leave_the_same_for_later_ones(runs):
    left = [{str(p.relative_to(f)) for p in (f / "stages").rglob("*") if p.is_file()} for f in runs]
    assert left[0] == left[1]
    one, two = (f / "stages" for f in runs)
    for name in ("preference/pairs-1.jsonl", "reward_model/pairs.jsonl"):
        assert (one / name).read_bytes() == (two / name).read_bytes() != b""
    kept = [read_jsonl(f / "sample" / "demonstrations.jsonl") for f in (one, two)]
    for line in (*kept[0], *kept[1]):
        line["source"].pop("recipe")  # a hash, and the two recipes differ in name and launch
    assert kept[0] == kept[1] != []
    assert_close(*(f / "reward_model" / "model" / "model.safetensors" for f in (one, two)))
    ours, theirs = (json.loads((f / "reward_model" / "model" / "reward.json").read_text()) for f in (one, two))
    assert ours == pytest.approx(theirs, abs=1e-5)
