"""Runs that continue: with more steps, and with a reward function that was corrected."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import verizero as vz
from tests.api.tiny import ROWS, SMALL
from tests.launch.runs import assert_same_bytes
from verizero.pipeline.cli import main
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.stages import Stage
from verizero.pipeline.run.info import recipe_folder, write_origin

EACH = {**SMALL, "checkpoint.every_steps": 1, "scoring.retries": 0}
pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("folder")]


def good() -> Callable[..., float]:
    def reward(completion: str, answer: str) -> float:
        return 2.0 * (len(completion) > 4) + float(answer in completion)

    return reward


def longer() -> Callable[..., float]:
    def reward(completion: str, answer: str) -> float:
        return float(len(completion))

    return reward


def fails_from(checkpoint: int) -> Callable[..., float]:
    """A reward function that raises once there is a checkpoint of that number, or from the beginning."""

    def reward(completion: str, answer: str) -> float:
        if checkpoint == 0 or any(Path("runs").glob(f"*/checkpoints/{checkpoint - 1:08d}")):
            raise KeyError("no such column")
        return 2.0 * (len(completion) > 4) + float(answer in completion)

    return reward


def go(name: str, reward: Callable[..., float], steps: int = 4, **more: Any) -> vz.TrainedRun:
    return vz.train("tiny", ROWS, reward=reward, name=name, steps=steps, quiet=True, **EACH, **more)


def info(run: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path("runs", run, "run.json").read_text())
    return read


def rows_of(run: str) -> list[tuple[str, int]]:
    rows = [json.loads(line) for line in Path("runs", run, "metrics.jsonl").read_text().splitlines()]
    return [(row["kind"], row["step"]) for row in rows]


@pytest.mark.parametrize("checkpoint", [0, 1])
def test_a_function_that_failed_before_anything_was_trained_begins_again_when_it_is_corrected(checkpoint: int) -> None:
    """It failed in the first evaluation, or after it: the measures before training are the corrected function's."""
    with pytest.raises(vz.VerizeroError, match="no such column"):
        go("mended", fails_from(checkpoint))
    assert info("mended")["ended"]["reason"] == "graders_failed"
    assert_same_bytes(go("mended", good()).folder, go("whole", good()).folder)
    assert info("mended")["changes"] == []
    assert Path("runs/mended/stale/1").is_dir()


def test_a_function_that_failed_later_goes_on_from_the_last_good_step() -> None:
    with pytest.raises(vz.VerizeroError, match="no such column"):
        go("mended", fails_from(3))
    trained = rows_of("mended")
    go("mended", good())
    assert_same_bytes(vz.TrainedRun("runs/mended").folder, go("whole", good()).folder)
    steps = [row for row in trained if row[0] != "alarm"]
    assert steps == [("evaluation", 0), *(("step", number) for number in range(1, 5))]
    (change,) = info("mended")["changes"]
    assert change == {
        "stage": "rl",
        "checkpoint": "00000002",
        "files": ["verifier reward.py"],
        "allowed_by": "graders_failed",
    }


def test_another_function_after_steps_with_the_first_needs_a_word() -> None:
    go("own", good())
    with pytest.raises(vz.VerizeroError, match=r"resume='changed', --resume changed"):
        go("own", longer())
    with pytest.raises(vz.VerizeroError, match=r"verifier reward\.py changed; rl\.rounds was 1|--resume changed"):
        go("own", longer(), steps=8)
    run = go("own", longer(), steps=8, resume="changed")
    (change,) = info("own")["changes"]
    assert (change["checkpoint"], change["allowed_by"]) == (sorted_checkpoints_at(4), "resume")
    assert len(run.metrics) == 8
    by_step = {
        step: {m["reward"] == float(len(m["response"])) for m in run.samples(stage="rl") if m["step"] == step}
        for step in range(1, 9)
    }
    assert all(True in of_step for step, of_step in by_step.items() if step > 4)
    assert by_step[8] == {True}
    assert False in by_step[1] | by_step[2] | by_step[3] | by_step[4]
    # The word is needed once: the run now is one with the new function.
    go("own", longer(), steps=8)
    assert info("own")["changes"] == [change]
    with pytest.raises(vz.VerizeroError, match="Undo the change, or start a new run"):
        go("own", longer(), steps=8, resume="changed", seed=3)


def sorted_checkpoints_at(step: int) -> str:
    """The number of the checkpoint at which the run had trained so many steps and was evaluated."""
    return f"{step + 1:08d}"


def test_the_command_has_the_same_word(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for field, value in EACH.items() for word in ("--set", f"{field}={value}")]
    Path("r.py").write_text("def reward(completion, answer):\n    return float(answer in completion)\n")
    command = ["train", "tiny", "qa.jsonl", "--reward", "r.py:reward", "--name", "own", "--steps", "2", "--no-prefect"]
    assert main([*command, *words]) in (0, None)
    Path("r.py").write_text("def reward(completion):\n    return float(len(completion))\n")
    assert main([*command, *words]) == 1
    assert "--resume changed" in capsys.readouterr().err
    assert main([*command, *words, "--resume", "changed"]) in (0, None)


def test_more_steps_are_those_of_a_run_that_was_asked_for_all_at_once() -> None:
    run = go("more", good(), steps=3, **{"data.evaluation": []})
    assert run.train(steps=2, quiet=True) is run
    assert len(run.metrics) == 5
    assert_same_bytes(run.folder, go("whole", good(), steps=5, **{"data.evaluation": []}).folder)
    run = go("rounds", good(), steps=4, **{"rl.rounds": 2, "rl.steps_per_round": 2})
    with pytest.raises(vz.VerizeroError, match=r"consists of rounds of 2 steps; give a multiple, e\.g\. 4"):
        run.train(steps=3)
    run.train(steps=4, quiet=True)
    theirs = go("all-rounds", good(), steps=8, **{"rl.rounds": 4, "rl.steps_per_round": 2})
    assert_same_bytes(run.folder, theirs.folder)


def test_the_sum_as_steps_continues_in_the_rounds_that_there_are(folder: Path) -> None:
    go("sum", good(), steps=20)
    run = go("sum", good(), steps=30)
    assert len(run.metrics) == 30
    assert load_recipe(run.folder / "recipe.yaml").section_of(Stage.model_validate("rl")).steps_of_items() == [10] * 3


def test_a_run_that_was_ended_early_is_done_first(folder: Path) -> None:
    run = go("early", good(), callbacks=[lambda event: vz.STOP if event.step == 2 else None])
    with pytest.raises(vz.VerizeroError, match=r"the run is not done; call run\.train\(\) first"):
        run.train(steps=4)
    vz.TrainedRun(folder / "runs" / "early").train(quiet=True)
    assert info("early")["ended"]["reason"] == "done"
    assert_same_bytes(run.folder, go("whole", good()).folder)


def test_more_steps_of_a_rate_that_has_fallen_are_refused() -> None:
    shown = [{"question": r["question"], "response": f"the sum is {r['answer']} a b c d e f"} for r in ROWS]
    run = vz.train("tiny", shown, name="shown", steps=3, quiet=True)
    with pytest.raises(vz.VerizeroError, match=r"sft\.optimizer\.schedule=cosine has lowered its learning rate"):
        run.train(steps=2, quiet=True)
    constant = {"sft.optimizer.schedule": "constant", "sft.optimizer.warmup_steps": 0}
    run = vz.train("tiny", shown, name="even", steps=3, quiet=True, **constant)
    run.train(steps=2, quiet=True)
    whole = vz.train("tiny", shown, name="whole", steps=5, quiet=True, **constant)
    assert_same_bytes(run.folder, whole.folder)


def test_a_run_that_was_moved_has_its_recipe_in_it(folder: Path) -> None:
    (folder / "old" / "given").mkdir(parents=True)
    write_origin(folder / "old", folder / "old" / "given")
    (folder / "old").rename(folder / "new")
    assert recipe_folder(folder / "new") == folder / "new" / "given"
