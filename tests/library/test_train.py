"""`verizero.train`: the program of the README, the same by the command, and a run that is continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import verizero as vz
from verizero.pipeline.cli import main
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.rates import learning_rate
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.models.load import create_model, save_folder

ROWS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(5)]
SMALL = {"rollout.max_response_tokens": 8, "rl.prompts_per_step": 2, "rl.group_size": 4, "evaluation.k": 1}
FILE = """
def reward(completion, answer):
    return 2.0 * (len(completion) > 4) + float(answer in completion)
"""
SIZES = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip


def reward(completion: str, answer: str) -> float:
    return 2.0 * (len(completion) > 4) + float(answer in completion)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a tiny model, questions and answers, and a reward function."""
    tokenizer = character_tokenizer("0123456789+-*=()<>/, .\nabcdefghijklmnopqrstuvwxyz\\{}:?")
    save_folder(create_model("qwen2", SIZES, tokenizer, 0), tokenizer, tmp_path / "tiny")
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "r.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights(run: vz.TrainedRun) -> bytes:
    return (run.model / "model.safetensors").read_bytes()


@pytest.mark.integration
def test_rows_and_a_function_are_the_run_of_the_command_on_files(folder: Path) -> None:
    run = vz.train("tiny", ROWS, reward=reward, name="mine", steps=3, quiet=True, **SMALL)
    words = [word for field, value in SMALL.items() for word in ("--set", f"{field}={value}")]
    command = [
        "train",
        "tiny",
        "qa.jsonl",
        "--reward",
        "r.py:reward",
        "--name",
        "theirs",
        "--steps",
        "3",
        "--no-prefect",
    ]
    assert main([*command, *words]) in (0, None)
    assert weights(vz.TrainedRun("runs/theirs")) == weights(run)
    before, after = (run.results["default"][side]["reward"] for side in ("before", "after"))
    assert f"{before:.3f} -> {after:.3f}" in repr(run)
    assert len(run.metrics) == 3
    sampled = run.samples(stage="rl")
    assert sampled
    assert all(reward(r["response"], str(eval(r["prompt"].rstrip("=")))) == r["reward"] for r in sampled)
    with pytest.raises(vz.VerizeroError, match="nothing says which rewards are right"):
        run.samples(wrong=True)
    assert "<iframe" in run.report._repr_html_()
    assert isinstance(run.chat("1+1="), str)
    assert [str(f) for f in run.diagnose()] == [str(f) for f in vz.TrainedRun(run.folder).diagnose()]
    # The recipe that was written is a recipe like any other.
    again = vz.train(run.folder / "given" / "recipe.yaml", name="again", quiet=True)
    assert weights(again) == weights(run)


@pytest.mark.integration
def test_a_run_that_was_stopped_goes_on_with_the_same_bytes(folder: Path) -> None:
    whole = vz.train("tiny", ROWS, reward=reward, name="whole", steps=3, quiet=True, **SMALL, **EVERY_STEP)

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

    path, lines = write_recipe(Wish("tiny", "qa.jsonl", "r.py:reward", fields={"rl.group_size": 4}))
    tree = yaml.safe_load(path.read_text())
    assert path.parent == Path("runs/tiny-qa/given")
    assert tree["rl"]["optimizer"]["learning_rate"] == learning_rate("rewards", 5000)
    assert tree["rl"]["group_size"] == 4
    assert lines[0] == "qa.jsonl: question is 'question', answer 'answer'"
    assert learning_rate("rewards", 494_000_000) == 1e-6
    assert learning_rate("rewards", 494_000_000, is_lora=True) == pytest.approx(1e-5)


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
        ({"data": [{"chosen": "a", "rejected": "b"}], "reward": reward}, "pairs train by a preference loss"),
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


def test_public_names() -> None:
    assert vz.__all__ == ["Attempt", "TrainedRun", "Verdict", "VerizeroError", "train", "verifier"]
    assert all(getattr(vz, name).__doc__ for name in vz.__all__)
    with pytest.raises(AttributeError, match="no attribute 'tran'; public names: Attempt, TrainedRun"):
        vz.tran  # noqa: B018
