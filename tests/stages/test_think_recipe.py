"""The recipe with room to think, in a form of seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.think import by_depth, tables
from pipeline.config.load import load_recipe
from pipeline.config.recipes import RECIPES
from pipeline.data.generators.composition import Params
from pipeline.report.files import read_rollouts, read_run
from pipeline.report.progress import Silent
from pipeline.whole_run import train
from tests.launch.words import folder_of

RECIPE = RECIPES / "think.yaml"
SECONDS = (
    *("sft.steps=3", "rl.rounds=1", "rl.steps_per_round=2", "rl.prompts_per_step=4", "rl.group_size=2"),
    *("rl.select.keep=all", "evaluation.limit=4", "evaluation.k=2", "rollout.max_response_tokens=8"),
    *("train.threads=1", "train.device=cpu", "report.trackers=[]"),
)


@pytest.mark.integration
def test_it_imitates_shallow_tasks_and_trains_on_all_depths(tmp_path: Path) -> None:
    recipe = load_recipe(RECIPE, [*SECONDS, f"output={tmp_path}"])
    train(recipe, RECIPES, folder_of(recipe), "auto", Silent())
    folder = folder_of(recipe)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["domains"].keys() == {"composition", "composition_deeper"}
    assert {sample.domain for sample in read_rollouts(folder)} == {"composition", "composition_deeper"}
    run = read_run(folder)
    assert [step.stage for step in run.steps] == ["sft"] * 3 + ["rl"] * 2
    measures, depths, lengths = (table.splitlines() for table in tables(folder).split("\n\n"))
    assert [line.split(" | ")[1] for line in measures[2:]] == ["pass@1", "pass@2", "greedy", "tokens"] * 2
    assert depths[0].startswith("| functions | ")
    shown = [f"{step.metrics['length/mean']:.1f}" for step in run.rl_steps]
    assert [line.split(" | ")[1] for line in lengths[2:]] == shown


def test_a_run_without_rl_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(SystemExit, match="no evaluation before RL, or no RL step"):
        tables(tmp_path)


def test_pass_rates_are_means_over_the_tasks_of_a_depth() -> None:
    shown = {"by_prompt": [("composition/57a", 1.0), ("composition/03ab", 0.25), ("composition/99cb", 0.75)]}
    deeper = {"by_prompt": [("composition/57cebda", 0.5)]}
    assert by_depth({"composition": shown, "composition_deeper": deeper}) == {1: 1.0, 2: 0.5, 5: 0.5}


def test_every_answer_of_every_depth_has_room() -> None:
    recipe = load_recipe(RECIPE)
    assert recipe.model.create is not None
    source = recipe.data.evaluation[0].generator
    assert source is not None
    depth = Params.model_validate(source.params).depth
    # a step of one letter is "c75 ": four tokens, the last without its space; the end is a token
    response = 4 * depth - 1 + len("<think></think>57") + 1
    assert response <= recipe.rollout.max_response_tokens
    assert (
        len("57=") + depth + recipe.rollout.max_response_tokens <= recipe.model.create.config["max_position_embeddings"]
    )
