"""The recipe with room to think, in a form of seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.think import attempts, by_depth, tables
from tests.launch.words import folder_of
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import RECIPES
from verizero.pipeline.data.generators.countdown import Params, expression, written
from verizero.pipeline.report.files import read_rollouts, read_run
from verizero.pipeline.report.progress import Silent
from verizero.pipeline.whole_run import train

RECIPE = RECIPES / "think.yaml"
SECONDS = (
    *("sft.steps=3", "rl.rounds=1", "rl.steps_per_round=2", "rl.prompts_per_step=4", "rl.group_size=2"),
    *("rl.select.keep=all", "evaluation.limit=4", "evaluation.k=2", "rollout.max_response_tokens=8"),
    *("train.threads=1", "train.device=cpu", "report.trackers=[]", "sft.batch_size=16"),
    "data.train=[{generator: {name: countdown, params: {num_demonstrations: 600}}}]",
)


@pytest.mark.integration
def test_it_imitates_shallow_tasks_and_trains_on_all_depths(tmp_path: Path) -> None:
    recipe = load_recipe(RECIPE, [*SECONDS, f"output={tmp_path}"])
    train(recipe, RECIPES, folder_of(recipe), "auto", Silent())
    folder = folder_of(recipe)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["domains"].keys() == {"countdown", "countdown_deeper"}
    assert {sample.domain for sample in read_rollouts(folder)} == {"countdown", "countdown_deeper"}
    run = read_run(folder)
    assert [step.stage for step in run.steps] == ["sft"] * 3 + ["rl"] * 2
    measures, depths, tried, lengths = (table.splitlines() for table in tables(folder).split("\n\n"))
    assert [line.split(" | ")[1] for line in measures[2:]] == ["pass@1", "pass@2", "greedy", "tokens"] * 2
    assert depths[0].startswith("| numbers | ")
    assert [line.split(" | ")[0] for line in tried[2:]] == [
        *("| share after SFT", "| right after SFT", "| share after RL", "| right after RL")
    ]
    shown = [f"{step.metrics['length/mean']:.1f}" for step in run.rl_steps]
    assert [line.split(" | ")[1] for line in lengths[2:]] == shown


def test_a_run_without_rl_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(SystemExit, match="no evaluation before RL, or no RL step"):
        tables(tmp_path)


def test_pass_rates_are_means_over_the_tasks_of_a_depth() -> None:
    shown = {"by_prompt": [("countdown/7_5=2", 1.0), ("countdown/3_8_5=6", 0.25), ("countdown/2_9_4=15", 0.75)]}
    deeper = {"by_prompt": [("countdown/1_2_3_4_5=15", 0.5)]}
    assert by_depth({"countdown": shown, "countdown_deeper": deeper}) == {2: 1.0, 3: 0.5, 5: 0.5}


def test_attempts_are_counted_in_the_thinking(tmp_path: Path) -> None:
    once, thrice = "07+05=12y</think>07+05", "07+05=12n,07-05=02n,05+07=12n</think>05+07"
    keys = {"stage": "evaluation/after rl", "round": 0, "step": 2, "domain": "countdown", "prompt": "", "sample": 0}
    graded = {"status": "graded", "reason": "", "extracted": "", "finish_reason": "stop", "length": 9, "kept": True}
    rows = [
        {**keys, **graded, "prompt_id": "countdown/7_5=12", "response": text, "reward": reward, "score": reward}
        for text, reward in ((once, 1.0), (once, 0.0), (once, 1.0), (thrice, 0.0))
    ]
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert attempts({"RL": list(read_rollouts(tmp_path))})[2:] == [
        "| share after RL | 0.75 | 0.00 | 0.25 | 0.00 | 0.00 |",
        "| right after RL | 0.67 |  | 0.00 |  |  |",
    ]


def test_a_policy_may_fail_four_times_and_still_answer() -> None:
    recipe = load_recipe(RECIPE)
    assert recipe.model.create is not None
    source = recipe.data.evaluation[0].generator
    assert source is not None
    params = Params.model_validate(source.params)
    search = ",".join([written([params.largest] * params.terms)] * 5)
    response = len(f"{search}</think>{expression([params.largest] * params.terms)}") + 1  # the end is a token
    assert response <= recipe.rollout.max_response_tokens
    prompt = len("20 " * params.depth + "20<think>")
    assert prompt + recipe.rollout.max_response_tokens <= recipe.model.create.config["max_position_embeddings"]
