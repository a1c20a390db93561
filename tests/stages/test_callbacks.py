"""Callbacks of whole runs: called once for each step and evaluation, also after a resume; one that ends the run."""

import json

import pytest

from tests.launch.runs import assert_same_bytes
from tests.stages.marks import MARKED
from tests.stages.sessions import go
from tests.stages.start import start
from tests.stages.tiny import tiny
from verizero.pipeline.errors import RunError
from verizero.pipeline.run.callbacks import STOP

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("pageless")]

ALL = {
    "stages": ["sft", "sample", "preference", "reward_model", "rl"],
    "sft": {"steps": 4, "batch_size": 8, "evaluate_every": 2, "optimizer": {"learning_rate": 1e-4}},
    "sample": {"samples": 6},
    "preference": {"loss": {"name": "kto"}, "steps": 3, "batch_size": 4, "sampled": {"prompts": 16, "samples": 6}},
    "reward_model": {"steps": 3, "batch_size": 4, "held_out": 0.5, "sampled": {"prompts": 16, "samples": 6}},
    "rl": {"rounds": 2, "steps_per_round": 2, "select": {"keep": "all"}},
    "checkpoint": {"every_steps": 10, "keep": 3},
}


def recipe():
    return tiny(ALL, [start(), MARKED])


class Watch:
    """Notes all events, and ends the run after those that it is told."""

    def __init__(self, *stops):
        self.stops, self.seen = stops, list[tuple[str, str, int]]()

    def __call__(self, event):
        self.seen.append((event.kind, event.stage, event.step))
        assert event.kind == "evaluation" or event.metrics
        if event.stage == "rl" and event.kind == "step":
            assert len(event.groups) == event.metrics["groups/sampled"] > 0
        return STOP if self.seen[-1] in self.stops else None


def written(folder):
    """What metrics.jsonl has of steps and evaluations, in order."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kinds = {"step": "step", "sample": "step", "evaluation": "evaluation"}
    return [(kinds[r["kind"]], r["stage"], r["step"]) for r in rows if r["kind"] in kinds]


@pytest.mark.nightly
def test_each_step_and_evaluation_once_also_where_a_callback_ended_the_run_again_and_again(tmp_path):
    go(recipe(), tmp_path / "whole")
    whole = tmp_path / "whole" / "run"
    stops = [
        ("evaluation", "base", 0),
        ("step", "sft", 1),
        ("evaluation", "sft", 0),
        ("step", "sample", 1),
        ("step", "preference", 2),
        ("step", "reward_model", 3),
        ("step", "rl", 1),
        ("evaluation", "rl", 4),
    ]
    watch = Watch(*stops)
    folder, places = tmp_path / "run", list[str]()
    for _ in range(len(stops) + 2):
        go(recipe(), tmp_path, callbacks=[watch])
        ended = json.loads((folder / "run.json").read_text())["ended"]
        assert json.loads((folder / "summary.json").read_text())["ended"] == ended
        assert (folder / "model").is_dir()
        if ended["reason"] == "done":
            break
        assert ended["reason"] == "stopped"
        places.append(ended["where"])
    assert places == [
        "evaluate before training",
        "sft step 1",
        "evaluate sft step 2",
        "evaluate after sft",
        "sample step 1",
        "preference step 2",
        "reward_model step 3",
        "rl step 1",
        "evaluate after round 2",
    ]
    assert watch.seen == written(folder) == written(whole)
    assert_same_bytes(folder, whole)


def test_a_callback_that_raises_ends_the_run_and_the_step_is_done_and_told_again(tmp_path):
    file = tmp_path / "watch.py"
    file.write_text(
        "from pathlib import Path\n"
        "def on_step(event):\n"
        "    Path(__file__).with_name('seen').open('a').write(f'{event.stage} {event.step}\\n')\n"
        "    assert event.step < 2 or Path(__file__).with_name('mended').exists(), 'wrong'\n"
    )
    config = tiny(
        {"stages": ["rl"], "sft": None, "rl": {"rounds": 1, "steps_per_round": 3}, "data": {"evaluation": []}},
        [start(), "callbacks=[watch.py:on_step]", "checkpoint.every_steps=1"],
    )
    with pytest.raises(RunError, match=rf"callback watch.py:on_step failed: AssertionError: wrong, at {file}:4"):
        go(config, tmp_path)
    ended = json.loads((tmp_path / "run" / "run.json").read_text())["ended"]
    assert (ended["reason"], ended["where"]) == ("error", "round 1 step 2")
    assert f"at {file}:4" in ended["message"]
    (tmp_path / "mended").touch()
    go(config, tmp_path)
    assert (tmp_path / "seen").read_text().split("\n")[:-1] == ["rl 1", "rl 2", "rl 2", "rl 3"]
    # It is no part of the run: without it nothing is stale.
    lines = go(config.model_copy(update={"callbacks": ()}), tmp_path, "must")
    assert not any("stale" in line for line in lines)
