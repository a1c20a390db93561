"""A layout of each kind trains two steps by one call."""

import json

import pytest

import verizero as vz
from tests.api import layouts
from tests.api.tiny import save_tiny, weights
from tests.data.chat_templates import TEMPLATES
from tests.verifiers import program_rows
from verizero.pipeline.cli import main
from verizero.pipeline.config.load import load_recipe


def humaneval(i):
    return program_rows.humaneval(i).row


KINDS = {humaneval: "rl", layouts.openai_tools: "sft", layouts.hh: "preference"}
"""Layout -> the stage that trains on it; tests/api/test_columns.py reads all."""
RL = {
    "scoring.overlap": False,
    "rollout.max_response_tokens": 4,
    "rl.prompts_per_step": 2,
    "rl.group_size": 2,
    "evaluation.k": 1,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_tiny(folder / "plain", positions=512)
    save_tiny(folder / "chat", positions=1024, chat=TEMPLATES["no_end"])
    return folder


@pytest.mark.run
@pytest.mark.usefixtures("pageless")
@pytest.mark.parametrize("layout", KINDS, ids=lambda f: f.__name__)
def test_a_layout_trains_without_a_word_about_its_columns(layout, models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kind = KINDS[layout]
    model = models / ("chat" if layout in layouts.IMITATED else "plain")
    more = RL if kind == "rl" else {f"{kind}.batch_size": 4}
    run = vz.train(model, [layout(i) for i in range(20)], name="run", steps=2, quiet=True, **more)
    assert load_recipe(run.folder / "given" / "recipe.yaml").stage_names == (kind,)
    metrics = run.metrics.to_dict("records")
    assert len(metrics) == 2
    if kind == "rl":
        assert {r["status"] for r in run.samples()} <= {"graded", "no_answer"}
        return
    # Rewards of so short answers are all zero, but these losses are not.
    assert weights(run) != (model / "model.safetensors").read_bytes()
    assert all(row["loss"] > 0 for row in metrics)
    rows = (run.folder / "data" / "train.jsonl").read_text().splitlines()
    assert all(json.loads(row)["verifier"] == "" for row in rows)


@pytest.mark.run
def test_a_recipe_of_rows_without_verifiers_is_checked_and_has_nothing_to_try(models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [layouts.alpaca(i) for i in range(20)]
    run = vz.train(models / "plain", rows, name="run", steps=1, quiet=True)
    recipe = str(run.folder / "given" / "recipe.yaml")
    assert main(["diagnose", "--before", recipe]) == 0
    said = capsys.readouterr().out
    assert "no row is graded" in said
    assert main(["try", recipe]) != 0
    assert "no training prompts that are graded" in capsys.readouterr().err
