"""Runs that start from a GGUF file; the recipe of a pretrained model in a form of seconds, from a tiny file."""

import json
import shutil

import pytest

from tests.launch.host import folder_of
from tests.models.gguf_files import tiny_llama, write_gguf
from tests.stages.tiny import tiny
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import RECIPES
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.models.gguf_file import MADE
from verizero.pipeline.models.load import load_model, load_tokenizer
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.report.run_files import read_rollouts, read_run
from verizero.pipeline.run.choose_checkpoint import recipe_fields
from verizero.pipeline.whole_run import train

pytest.importorskip("gguf")

CHANGES = {"stages": ["sft"], "rl": None, "sft": {"steps": 3, "batch_size": 4}, "model": {"create": None}}


@pytest.mark.run
def test_a_run_starts_from_the_file_says_so_and_leaves_a_hugging_face_folder(tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), quantized=True)
    recipe = tiny(CHANGES, [f"model.path={file}", f"output={tmp_path}", "name=run"])
    folder = tmp_path / "run"
    train(recipe, tmp_path, folder, "auto", Progress())
    (home,) = [p for p in (tmp_path / MADE).iterdir() if p.is_dir()]
    start = json.loads((folder / "run.json").read_text())["start"]
    assert (start["file"], start["architecture"], start["is_quantized"]) == ("tiny.gguf", "llama", True)
    assert "A quantised start: tiny.gguf (Tiny, llama; weights 99" in (folder / "report.html").read_text()
    before, after = load_model(str(home)).state_dict(), load_model(str(folder / "model")).state_dict()
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in after)
    assert load_tokenizer(str(folder / "model")).chat_template == load_tokenizer(str(home)).chat_template
    # the folder made from the file may go: it is made again
    shutil.rmtree(tmp_path / MADE)
    train(recipe, tmp_path, folder, "must", Progress())
    write_gguf(file, tiny_llama(1), quantized=True)
    with pytest.raises(RunError, match=r"file of model\.path changed"):
        train(recipe, tmp_path, folder, "auto", Progress())


def test_a_file_that_is_missing_ends_the_run_before_anything_else(tmp_path):
    recipe = tiny(CHANGES, [f"model.path={tmp_path / 'nowhere.gguf'}", f"output={tmp_path}"])
    assert recipe_fields(recipe)["model.path"] == str(tmp_path / "nowhere.gguf")
    with pytest.raises(ConfigError, match=r"nowhere\.gguf.*no such file"):
        train(recipe, tmp_path, tmp_path / "run", "auto", Progress())
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


RECIPE = RECIPES / "smollm2.yaml"
SECONDS = (
    *("rl.rounds=1", "rl.steps_per_round=2", "rl.prompts_per_step=2", "rl.group_size=2", "rl.select.keep=all"),
    *("rollout.max_response_tokens=4", "evaluation.limit=2", "evaluation.k=2", "evaluation.every_rounds=1"),
    *("train.threads=1", "train.device=cpu", "scoring.overlap=false", "report.trackers=[]"),
)
"""Changes that make the recipe one of seconds with a tiny model, whose answers are all wrong."""


@pytest.mark.run
@pytest.mark.parametrize("changes", [(), ("train.lora={rank: 2}",)], ids=["whole", "lora"])
def test_the_recipe_runs_from_a_tiny_file_with_all_weights_or_adapters(changes, tmp_path):
    """Both domains are trained and evaluated, and the folder that is left answers in plain transformers."""
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), quantized=True)
    recipe = load_recipe(RECIPE, [*SECONDS, f"model.path={file}", f"output={tmp_path}", *changes])
    folder = folder_of(recipe)
    train(recipe, RECIPES, folder, "auto", Progress())
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["domains"].keys() == {"extraction", "instructions"}
    assert [step.metrics["length/mean"] for step in read_run(folder).steps] == [4, 4]
    assert {sample.domain for sample in read_rollouts(folder)} == {"extraction", "instructions"}
    tokenizer, model = load_tokenizer(str(folder / "model")), load_model(str(folder / "model"))
    ids = tokenizer("assistant: ", return_tensors="pt")
    assert model.generate(**ids, max_new_tokens=2, do_sample=False).shape[1] > ids["input_ids"].shape[1]
