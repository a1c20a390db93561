"""Runs that continue: with more steps, and with a reward function that was corrected."""

import contextlib
import json
import signal
from pathlib import Path

import pytest

import verizero as vz
from tests.api.tiny import ROWS, SMALL, save_tiny
from tests.launch.runs import assert_same_bytes, rows
from tests.stages.tiny import tiny
from verizero.pipeline.api.trained import with_more_steps
from verizero.pipeline.cli import main
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.saving import recipe_folder, recipe_of_run, write_origin
from verizero.pipeline.run.state import schedule
from verizero.pipeline.whole_run import train

EACH = {**SMALL, "checkpoint.every_steps": 1, "scoring.retries": 0}
pytestmark = [pytest.mark.run, pytest.mark.usefixtures("folder", "pageless")]


def good():
    def reward(completion, answer):
        return 2.0 * (len(completion) > 4) + float(answer in completion)

    return reward


def longer():
    def reward(completion, answer):
        return float(len(completion))

    return reward


def fails_from(checkpoint):
    """A reward function that raises once there is a checkpoint of that number, or from the beginning."""

    def reward(completion, answer):
        if checkpoint == 0 or any(Path("runs").glob(f"*/checkpoints/{checkpoint - 1:08d}")):
            raise KeyError("no such column")
        return 2.0 * (len(completion) > 4) + float(answer in completion)

    return reward


def go(name, reward, steps=4, **more):
    return vz.train("tiny", ROWS, reward=reward, name=name, steps=steps, quiet=True, **EACH, **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    save_tiny(folder / "tiny")
    with contextlib.chdir(folder):
        return go("whole", good()).folder.resolve()


def info(run):
    return json.loads(Path("runs", run, "run.json").read_text())


def rows_of(run):
    return [(row["kind"], row["step"]) for row in rows(Path("runs", run))]


def test_a_call_that_was_interrupted_goes_on_with_the_same_bytes_when_it_is_made_again(whole):
    def interrupt(event):
        if event.kind == "step" and event.step == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        go("parts", good(), callbacks=[interrupt])
    assert info("parts")["ended"]["reason"] == "interrupted"
    with pytest.raises(vz.VerizeroError, match=r"the run is not done; call run\.train\(\) first"):
        vz.TrainedRun("runs/parts").train(steps=4)
    steps = []
    run = go("parts", good(), callbacks=[lambda event: steps.append(event.step) if event.kind == "step" else None])
    assert steps == [3, 4], "the step that was interrupted is done again"
    assert_same_bytes(run.folder, whole)
    before, after = (run.results["default"][side]["reward"] for side in ("before", "after"))
    assert f"{before:.3f} -> {after:.3f}" in repr(run)
    with pytest.raises(vz.VerizeroError, match="nothing says which rewards are right"):
        run.samples(wrong=True)
    with vz.open("tiny", ROWS, reward=good(), name="parts", steps=4, quiet=True, **EACH) as s:
        assert s.done, "nothing holds the folder"


@pytest.mark.parametrize("checkpoint", [0, 1])
def test_a_function_that_failed_before_anything_was_trained_begins_again_when_it_is_corrected(checkpoint, whole):
    """It failed in the first evaluation, or after it: the measures before training are the corrected function's."""
    with pytest.raises(vz.VerizeroError, match="no such column"):
        go("mended", fails_from(checkpoint))
    assert info("mended")["ended"]["reason"] == "graders_failed"
    assert_same_bytes(go("mended", good()).folder, whole)
    assert info("mended")["changes"] == []
    assert Path("runs/mended/stale/1").is_dir()


def test_a_function_that_failed_later_goes_on_from_the_last_good_step(whole):
    with pytest.raises(vz.VerizeroError, match="no such column"):
        go("mended", fails_from(3))
    trained = rows_of("mended")
    assert_same_bytes(go("mended", good()).folder, whole)
    steps = [row for row in trained if row[0] != "alarm"]
    assert steps == [("evaluation", 0), *(("step", number) for number in range(1, 5))]
    (change,) = info("mended")["changes"]
    assert change == {
        "stage": "rl",
        "checkpoint": "00000002",
        "files": ["verifier reward.py"],
        "allowed_by": "graders_failed",
    }


def test_another_function_after_steps_with_the_first_needs_a_word():
    go("own", good(), callbacks=[lambda event: vz.STOP if event.step == 2 else None])
    with pytest.raises(vz.VerizeroError, match=r"resume='changed', --resume changed"):
        go("own", longer())
    run = go("own", longer(), resume="changed")
    (change,) = info("own")["changes"]
    assert (change["checkpoint"], change["allowed_by"]) == ("00000002", "resume")
    assert len(run.metrics) == 4
    by_step = {
        step: {m["reward"] == float(len(m["response"])) for m in run.samples(stage="rl") if m["step"] == step}
        for step in range(1, 5)
    }
    assert by_step[4] == {True}
    assert False in by_step[1] | by_step[2]
    # The word is needed once: the run now is one with the new function.
    go("own", longer())
    assert info("own")["changes"] == [change]
    with pytest.raises(vz.VerizeroError, match="Undo the change, or start a new run"):
        go("own", longer(), resume="changed", seed=3)


def test_the_command_has_the_same_word(capsys):
    words = [word for field, value in EACH.items() for word in ("--set", f"{field}={value}")]
    Path("r.py").write_text("def reward(completion, answer):\n    return float(answer in completion)\n")
    command = ["train", "tiny", "qa.jsonl", "--reward", "r.py:reward", "--name", "own", "--steps", "2", "--no-prefect"]
    assert main([*command, *words]) in (0, None)
    Path("r.py").write_text("def reward(completion):\n    return float(len(completion))\n")
    assert main([*command, *words]) == 1
    assert "--resume changed" in capsys.readouterr().err
    assert main([*command, *words, "--resume", "changed"]) in (0, None)


def test_more_steps_are_a_stage_of_their_own():
    run = go("more", good(), steps=3)
    before = (run.folder / "metrics.jsonl").read_bytes()
    assert run.train(steps=2, quiet=True) is run
    assert (run.folder / "metrics.jsonl").read_bytes().startswith(before)
    run.train(steps=1, quiet=True)
    assert len(run.metrics) == 6
    config, base = recipe_of_run(run.folder)
    assert config.stage_names == ("rl", "more_1", "more_2")
    whole = Path("runs/whole")
    train(config.model_copy(update={"name": "whole"}), base, whole, "never", Progress())
    assert_same_bytes(run.folder, whole)


def test_a_program_with_more_steps_gives_the_same_bytes_when_it_is_started_again():
    for _ in range(2):
        go("again", good(), steps=3).train(steps=2, quiet=True)
    assert Path("runs/again/stale/1/stages.json").is_file()
    go("kept", good(), steps=3).train(steps=2, quiet=True, callbacks=[lambda event: vz.STOP])
    vz.TrainedRun("runs/kept").train(quiet=True)
    assert info("kept")["ended"]["reason"] == "done"
    assert_same_bytes(Path("runs/again"), Path("runs/kept"))
    assert not Path("runs/kept/stale").exists()


def test_more_steps_of_pairs_are_no_more_in_several_parts():
    section = {"loss": {"name": "dpo"}, "epochs": 2, "parts": 3, "pairs": [{"file": "pairs.jsonl"}]}
    config = with_more_steps(tiny({"stages": ["preference"], "preference": section}), 5, Path())
    assert [item.num_steps for item in schedule(config) if item.stage == "more_1" and not item.is_evaluation] == [5]


def test_a_kind_that_does_not_train_the_policy_has_no_more_steps():
    config = tiny({"stages": ["sft", "reward_model"], "reward_model": {"steps": 4}})
    with pytest.raises(vz.VerizeroError, match="the last stage, reward_model, does not train the policy in steps"):
        with_more_steps(config, 5, Path())


def test_a_stage_that_has_begun_keeps_its_length():
    go("sum", good(), steps=3)
    for steps in (2, 5):
        with pytest.raises(
            vz.VerizeroError, match=r"keeps its length.* run\.train\(steps=…\) does, or start a new run"
        ):
            go("sum", good(), steps=steps)


def test_sft_has_more_steps_whatever_its_schedule():
    shown = [{"question": r["question"], "response": f"the sum is {r['answer']} a b c d e f"} for r in ROWS]
    run = vz.train("tiny", shown, name="shown", steps=3, quiet=True)
    run.train(steps=2, quiet=True)
    assert rows_of("shown") == [("step", n) for n in (1, 2, 3, 1, 2)]


def test_a_run_that_was_moved_has_its_recipe_in_it(folder):
    (folder / "old" / "given").mkdir(parents=True)
    write_origin(folder / "old", folder / "old" / "given")
    (folder / "old").rename(folder / "new")
    assert recipe_folder(folder / "new") == folder / "new" / "given"
