"""Runs that start from a GGUF file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.models.gguf_files import tiny_llama, write_gguf
from tests.stages.tiny import tiny
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.models.gguf_file import MADE
from verizero.pipeline.models.load import load_model, load_tokenizer
from verizero.pipeline.report.progress import Silent
from verizero.pipeline.run.fingerprints import recipe_fields
from verizero.pipeline.whole_run import train

pytest.importorskip("gguf")

CHANGES = {
    "stages": ["sft"],
    "rl": None,
    "sft": {"steps": 3, "batch_size": 4},
    "model": {"create": None},
}


@pytest.mark.integration
def test_a_run_starts_from_the_file_says_so_and_leaves_a_hugging_face_folder(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), quantized=True)
    recipe = tiny(CHANGES, [f"model.path={file}", f"output={tmp_path}", "name=run"])
    folder = tmp_path / "run"
    train(recipe, tmp_path, folder, "auto", Silent())
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
    train(recipe, tmp_path, folder, "must", Silent())
    write_gguf(file, tiny_llama(1), quantized=True)
    with pytest.raises(RunError, match=r"file of model\.path changed"):
        train(recipe, tmp_path, folder, "auto", Silent())


def test_a_file_that_is_missing_ends_the_run_before_anything_else(tmp_path: Path) -> None:
    recipe = tiny(CHANGES, [f"model.path={tmp_path / 'nowhere.gguf'}", f"output={tmp_path}"])
    assert recipe_fields(recipe)["model.path"] == str(tmp_path / "nowhere.gguf")
    with pytest.raises(ConfigError, match=r"nowhere\.gguf.*no such file"):
        train(recipe, tmp_path, tmp_path / "run", "auto", Silent())
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
