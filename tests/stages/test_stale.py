"""A run started again with another recipe or other data: exactly the stages from the first changed one run again."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stages.broken import Broken, run
from tests.stages.kill_driver import fingerprint
from tests.stages.sessions import go, train_model
from tests.stages.tiny import tiny
from verizero.pipeline.config.auto import for_machine
from verizero.pipeline.errors import RunError
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.choose_checkpoint import (
    STAGES_FILE,
    STALE_FOLDER,
    checkpoint_before_changes,
    fingerprints,
    read_stages_file,
    write_stages_file,
)
from verizero.pipeline.run.opening import prepare_run
from verizero.pipeline.run.state import RunState, read_state

SHORT = {
    "stages": ["sft", "rl", {"name": "sft_again", "kind": "sft", "with": {"steps": 3}}],
    "sft": {"steps": 20},
    "rl": {"rounds": 1, "steps_per_round": 2, "select": {"keep": "all"}},
    "data": {"train": [{"file": "rows.jsonl", "verifier": "math"}], "evaluation": []},
}


def rows(folder, num=12):
    lines = [
        {"id": f"s{a}", "question": f"{a}+2=", "answer": str(a + 2), "demonstration": f"\\boxed{{{a + 2}}}"}
        for a in range(num)
    ]
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def short(*overrides):
    return tiny(SHORT, overrides)


def stale_lines(config, base):
    return [line for line in go(config, base) if "stale:" in line]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    base = tmp_path_factory.mktemp("done")
    rows(base)
    go(short(), base)
    return base


@pytest.fixture
def base(done, tmp_path, pageless):
    return Path(shutil.copytree(done, tmp_path / "again"))


def fresh(config, tmp_path):
    """What the recipe leaves where nothing was before."""
    rows(tmp_path / "fresh")
    return fingerprint(train_model(config, tmp_path / "fresh", tmp_path / "fresh" / "run"))


CHANGED = "rl.optimizer.learning_rate=2e-3"


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """What the changed recipe leaves where nothing was before."""
    return fresh(short(CHANGED), tmp_path_factory.mktemp("changed"))


def files(folder):
    # The summary holds times; the origin names the recipe's folder, which is another for a copied run.
    aside = ("summary.json", "origin.json")
    return {p.name: p.read_bytes() for p in (folder / "run").glob("*.json*") if p.name not in aside}


@pytest.mark.run
def test_a_done_run_is_not_run_again(base):
    before = files(base)
    free = ("evaluation.k=5", "evaluation.limit=2", "report.samples_per_step=1", "checkpoint.every_steps=7")
    for overrides in ((), free):
        assert stale_lines(short(*overrides), base) == []
        assert files(base) == before
    assert not (base / "run" / STALE_FOLDER).exists()


@pytest.mark.run
def test_a_changed_stage_and_those_after_it_run_again(base, changed):
    before = files(base)
    (said,) = stale_lines(short(CHANGED), base)
    assert said == (
        "rl and sft_again are stale: rl.optimizer.learning_rate was 0.001, is 0.002; they run again from the end of "
        "sft; their earlier results are kept in stale/1"
    )
    assert fingerprint(base / "run") == changed
    assert stale_lines(short(CHANGED), base) == []

    aside = base / "run" / STALE_FOLDER / "1"
    kept = before["metrics.jsonl"].removesuffix((aside / "metrics.jsonl").read_bytes())
    assert [json.loads(line)["stage"] for line in kept.splitlines()] == ["sft"] * 20
    assert (base / "run" / "metrics.jsonl").read_bytes().startswith(kept)
    assert before["rollouts.jsonl"] == (aside / "rollouts.jsonl").read_bytes()
    assert {p.name for p in aside.iterdir()} >= {"model", "report.html", "summary.json", "recipe.yaml", "checkpoints"}
    assert json.loads((aside / STAGES_FILE).read_text()) == json.loads(before[STAGES_FILE])
    assert len(list((aside / "checkpoints").iterdir())) > 0


@pytest.mark.run
def test_a_stage_more_is_gone_on_with_and_one_less_put_aside(base, tmp_path):
    assert "the recipe has no stage sft_again any more" in stale_lines(short("stages=[sft, rl]"), base)[0]
    assert fingerprint(base / "run") == fresh(short("stages=[sft, rl]"), tmp_path)
    before = (base / "run" / "metrics.jsonl").read_bytes()
    assert stale_lines(short(), base) == []
    assert (base / "run" / "metrics.jsonl").read_bytes().startswith(before)
    assert [f.name for f in read_stages_file(base / "run")] == ["sft", "rl", "sft_again"]


@pytest.mark.run
def test_changed_rows_are_seen(base):
    rows(base, 13)
    with pytest.raises(RunError, match=r"the demonstrations changed; there is no stage before sft to resume from"):
        stale_lines(short(), base)
    rows(base)
    with pytest.raises(RunError, match=r"other data: seed was 3, is 4; "):
        stale_lines(short("seed=4"), base)
    assert stale_lines(short(), base) == []


@pytest.mark.run
@pytest.mark.parametrize(("kind", "has_more_steps"), [("sft", True), ("rl", True), ("reward_model", False)])
def test_the_remedy_for_another_length_names_a_call_that_the_kind_accepts(base, kind, has_more_steps):
    *before, last = read_stages_file(base / "run")
    field = "rl.rounds" if kind == "rl" else f"{kind}.steps"
    begun, changed = (replace(last, kind=kind, fingerprint=str(n), fields={field: n}) for n in (3, 4))
    write_stages_file(base / "run", [*before, begun])
    with pytest.raises(RunError, match=rf"{field} was 3, is 4; .* keeps its length") as caught:
        checkpoint_before_changes(base / "run", [*before, changed], newest(base), Progress())
    assert ("run.train(steps=…)" in str(caught.value)) == has_more_steps


@pytest.mark.run
def test_a_parameter_of_a_verifier_is_no_length(base):
    *before, last = read_stages_file(base / "run")
    begun = replace(last, fingerprint="earlier", fields={**last.fields, "data.verifiers.mine.params.steps": 3})
    write_stages_file(base / "run", [*before, begun])
    end = checkpoint_before_changes(base / "run", [*before, last], newest(base), Progress())
    assert read_state(end).stage.name == "rl"


@pytest.mark.run
@pytest.mark.usefixtures("pageless")
@pytest.mark.parametrize("moment", [("update", 2), ("train", 1)])
def test_a_run_broken_off_goes_on_with_another_recipe(tmp_path, changed, moment):
    base = tmp_path / "own"
    rows(base)
    with pytest.raises(Broken):
        run(short(), base / "run", moment)
    said = stale_lines(short(CHANGED), base)
    assert [line.split(":")[0] for line in said] == (["rl is stale"] if moment == ("update", 2) else [])
    assert fingerprint(base / "run") == changed


@pytest.mark.run
def test_killed_while_it_puts_aside_it_loses_nothing(base, changed, monkeypatch):
    before = {p.name for p in (base / "run" / "checkpoints").iterdir()}
    metrics = (base / "run" / "metrics.jsonl").read_bytes()
    renamed = []

    def rename(old, new):
        if len(renamed) == 5:
            raise Broken
        renamed.append(old)
        os.replace(old, new)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(Broken):
        checkpoint_before_changes(base / "run", now(short(CHANGED), base), newest(base), Progress())
    monkeypatch.undo()
    assert "checkpoints" in {p.parent.name for p in renamed}
    stale_lines(short(CHANGED), base)
    assert fingerprint(base / "run") == changed
    kept = {p.name for p in (base / "run" / STALE_FOLDER).glob("*/checkpoints/*")}
    end = RunState.from_json(json.loads((newest(base) / "state.json").read_text())).stage_ends["sft"]
    assert {name for name in before if int(name) > end} <= kept
    assert any(metrics.endswith(p.read_bytes()) for p in (base / "run" / STALE_FOLDER).glob("*/metrics.jsonl"))


def now(config, base):
    config = for_machine(config, 1, "cpu")  # as a run is opened
    return fingerprints(config, prepare_run(config, base, base / "prepared"), base)


def newest(base):
    return max((base / "run" / "checkpoints").iterdir())
