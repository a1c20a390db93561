"""`verizero.train`: the program of the README, the same by the command, and a run that is continued."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import yaml

import verizero as vz
from tests.library.tiny import ROWS, SMALL, weights
from tests.source import ROOT
from verizero.pipeline.cli import main
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.rates import learning_rate

README = (ROOT / "README.md").read_text(encoding="utf-8")


def reward(completion: str, answer: str) -> float:
    return 2.0 * (len(completion) > 4) + float(answer in completion)


@pytest.mark.integration
def test_the_program_of_the_readme_on_rows_is_its_command_on_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = re.findall(r"^```python\n(import verizero as vz\n.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"`verizero (train [^`]*--reward[^`]*r\.py:reward)`", README)
    model = command.split()[1]
    (folder / model).parent.mkdir()
    (folder / "tiny").rename(folder / model)
    rows = [{"question": f"The letter {letter}?", "answer": letter} for letter in "abcdefghijklmnopqrstuvwxyz"]
    (folder / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "r.py").write_text("def reward" + program.partition("def reward")[2].partition("\n\n")[0] + "\n")
    # The text as it is, but for the rows, and fewer steps.
    (folder / "program.py").write_text(program.replace('"qa.jsonl"', "rows"))
    with monkeypatch.context() as fewer:
        fewer.setattr(vz, "train", partial(vz.train, name="mine", steps=3, quiet=True, **SMALL), raising=False)
        run: vz.TrainedRun = run_path("program.py", {"rows": rows}, "__main__")["run"]
    words = [word for field, value in SMALL.items() for word in ("--set", f"{field}={value}")]
    assert main([*command.split(), "--name", "theirs", "--steps", "3", "--no-prefect", *words]) in (0, None)
    assert weights(vz.TrainedRun("runs/theirs")) == weights(run)
    assert weights(run) != (folder / model / "model.safetensors").read_bytes()
    sampled = run.samples(stage="rl")
    assert all(float(r["prompt"][-2] in r["response"]) == r["reward"] for r in sampled)
    assert {r["reward"] for r in sampled} == {0.0, 1.0}
    assert [r["reward"] for r in run.samples(wrong=True, stage="rl")] == [0.0] * sum(not r["reward"] for r in sampled)
    before, after = (run.results["default"][side]["pass@1"] for side in ("before", "after"))
    assert f"pass@1 {before:.3f} -> {after:.3f}" in repr(run)
    assert len(run.metrics) == 3
    assert "<iframe" in run.report._repr_html_()
    assert isinstance(run.chat("The letter z?"), str)
    assert [str(f) for f in run.diagnose()] == [str(f) for f in vz.TrainedRun(run.folder).diagnose()]
    # The recipe that was written is a recipe like any other.
    again = vz.train(run.folder / "given" / "recipe.yaml", name="again", quiet=True)
    assert weights(again) == weights(run)


@pytest.mark.integration
def test_a_run_that_was_stopped_goes_on_with_the_same_bytes(folder: Path) -> None:
    whole = vz.train("tiny", ROWS, reward=reward, name="whole", steps=3, quiet=True, **SMALL, **EVERY_STEP)
    before, after = (whole.results["default"][side]["reward"] for side in ("before", "after"))
    assert f"{before:.3f} -> {after:.3f}" in repr(whole)
    with pytest.raises(vz.VerizeroError, match="nothing says which rewards are right"):
        whole.samples(wrong=True)

    def ask(name: str) -> vz.TrainedRun:
        return vz.train("tiny", ROWS, reward=stops, name=name, steps=3, quiet=True, **SMALL, **EVERY_STEP)

    Path("stop").touch()
    with pytest.raises(vz.VerizeroError, match="stopped here"):
        ask("parts")
    Path("stop").unlink()
    assert json.loads(Path("runs/parts/run.json").read_text())["ended"]["reason"] == "graders_failed"
    assert weights(ask("parts")) == weights(whole)


EVERY_STEP: dict[str, Any] = {"checkpoint.every_steps": 1, "scoring.retries": 0}


def stops(completion: str, answer: str) -> float:
    if Path("stop").exists() and Path("runs/parts/checkpoints").exists():
        raise RuntimeError("stopped here")
    return reward(completion, answer)


@pytest.mark.integration
def test_answers_that_are_numbers_need_no_reward_and_demonstrations_train_sft(folder: Path) -> None:
    run = vz.train("tiny", "qa.jsonl", name="math", steps=1, quiet=True, **SMALL)
    assert {r["status"] for r in run.samples()} <= {"graded", "no_answer"}
    assert "pass@1" in run.results["default"]["before"]
    shown = [{"question": r["question"], "response": f"the sum is {r['answer']} a b c d e f"} for r in ROWS]
    run = vz.train("tiny", shown, name="shown", steps=2, quiet=True)
    assert load_recipe(run.folder / "given" / "recipe.yaml").stage_names == ("sft",)


def test_defaults_by_the_model(folder: Path) -> None:
    from verizero.pipeline.library.recipe import Wish, write_recipe

    Path("r.py").write_text("def reward(completion):\n    return 1.0\n")
    path, lines = write_recipe(Wish("tiny", "qa.jsonl", "r.py:reward", fields={"rl.group_size": 4}))
    tree = yaml.safe_load(path.read_text())
    assert path.parent == Path("runs/tiny-qa/given")
    assert tree["rl"]["optimizer"]["learning_rate"] == learning_rate("rewards", 5000)
    assert tree["rl"]["group_size"] == 4
    assert lines[0] == "qa.jsonl: question is 'question', answer 'answer'"
    path, _ = write_recipe(Wish("tiny", "qa.jsonl", "r.py:reward", fields={"train.lora.rank": 4}))
    assert yaml.safe_load(path.read_text())["rl"]["optimizer"]["learning_rate"] == learning_rate(
        "rewards", 5000, is_lora=True
    )
    assert learning_rate("rewards", 494_000_000) == 1e-6
    assert learning_rate("rewards", 494_000_000, is_lora=True) == 1e-5


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ({"data": [{"question": "Who?", "answer": "a king"}]}, "say what is right: reward=f with def f(completion"),
        ({"data": ROWS, "reward": lambda *texts: 1}, "has no name to be given by"),
        ({"data": ROWS, "reward": 3}, "reward: 3 is int; give a function, or a verifier's name"),
        ({"data": ROWS, "reward": "mathh"}, "did you mean"),
        ({"data": ROWS, "reward": reward, "weights": [1]}, "belong to several rewards"),
        (
            {"data": ROWS, "reward": [reward, "math"], "weights": [1]},
            "weights has 1 numbers for 2 rewards: reward, math",
        ),
        ({"data": ROWS, "reward": "math", "success": 1.0}, "success=1 is of reward functions"),
        ({"data": ROWS, "reward": lambda completion, row: 1, "steps": 0}, "steps must be a whole number of at least 1"),
        ({"data": ROWS, "rl.group_sise": 4}, "did you mean"),
        ({"data": [{"chosen": "a", "rejected": "b"}], "reward": reward}, "which train by a preference loss"),
        ({"data": [{"prompt": "Who?"}], "reward": "math"}, "there is no answer, and verifier 'math' compares"),
        ({"reward": reward}, "reward= goes with data="),
        ({"steps": 3}, "steps= goes with data="),
        (
            {"data": [{"prompt": "Who?"}], "reward": reward},
            "there is no answer, and reward function 'reward' asks for one",
        ),
    ],
)
def test_bad_arguments_say_what_to_give(call: dict[str, Any], error: str, folder: Path) -> None:
    with pytest.raises(vz.VerizeroError) as refused:
        vz.train("tiny", call.pop("data", None), name="bad", quiet=True, **call)
    assert error in str(refused.value)
