"""Scripts with the calls of TRL's quick start and of its page on GRPO: run by TRL, and with one import changed."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import verizero as vz
from tests.library.trl.tiny import save_tiny
from tests.trl_classes import trl_class
from verizero.pipeline.errors import ConfigError
from verizero.trl import GRPOTrainer

SCRIPTS = {file.stem: file for file in (Path(__file__).parent / "scripts").glob("*.py")}
pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "tiny", chat=True)
    return tmp_path


def run(name: str) -> dict[str, Any]:
    """Run the script with the import changed; return its names."""
    text = SCRIPTS[name].read_text()
    assert text.count("from trl import") == 1
    Path("script.py").write_text(text.replace("from trl import", "from verizero.trl import"))
    return runpy.run_path("script.py", run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_one_of_trl(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trl_class("GRPOTrainer")  # tells it that vLLM is absent
    # Its default is bfloat16, which it refuses on a CPU although it computes there.
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    runpy.run_path(str(SCRIPTS[name]))


def test_the_quick_start() -> None:
    trainer = run("quick_start")["trainer"]
    recipe = trainer.recipe
    assert trainer.run.folder.resolve() == Path("tiny-GRPO").resolve()
    assert (recipe.data.template.name, recipe.rollout.max_response_tokens) == ("chat", 512)
    assert trainer.state.global_step == 3
    rewarded = [(row["response"], row["reward"]) for row in trainer.run.samples()]
    assert rewarded
    assert all(reward == pytest.approx(float("5" in text) + 0.01 * len(set(text))) for text, reward in rewarded)


def test_texts_an_evaluation_and_the_saved_model(here: Path) -> None:
    import transformers

    trainer = run("unique_characters")["trainer"]
    history = trainer.state.log_history
    assert [row["step"] for row in history if "loss" in row] == [2, 4, 6]
    assert [row["step"] for row in history if "eval_reward" in row] == [3, 6]
    assert trainer.evaluate()["eval_reward"] == history[-1]["eval_reward"]
    assert history[0]["learning_rate"] == pytest.approx(1e-3 * (1 + 5 / 6) / 2)
    saved = transformers.AutoModelForCausalLM.from_pretrained("tiny-GRPO").state_dict()
    trained, start = (
        m.state_dict() for m in (trainer.model, transformers.AutoModelForCausalLM.from_pretrained("tiny"))
    )
    assert all(bool((saved[name] == trained[name]).all()) for name in trained)
    assert any(bool((saved[name] != start[name]).any()) for name in start)
    assert trainer.processing_class("1+1=")["input_ids"]


def test_the_model_is_published_when_the_run_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[tuple[Any, ...]] = []
    monkeypatch.setattr(vz.TrainedRun, "push", lambda run, *where: pushed.append((run.model, *where)) or "address")
    script = run("unique_characters")
    args = script["training_args"]
    args.output_dir, args.push_to_hub, args.hub_model_id, args.hub_private_repo = "out", True, "me/it", False
    args.eval_strategy, args.max_steps = "no", 1
    trainer = GRPOTrainer("tiny", script["reward_num_unique_chars"], args, script["dataset"])
    with pytest.raises(ConfigError, match="call train"):
        trainer.push_to_hub()
    trainer.train()
    assert pushed == [(Path("out/model").absolute(), "me/it", False)]
    assert trainer.push_to_hub(dataset_name="sums") == "address"
    with pytest.raises(ConfigError, match=r"push_to_hub\(tags=...\) is not possible"):
        trainer.push_to_hub(tags=["grpo"])


def test_several_rewards() -> None:
    trainer = run("several_rewards")["trainer"]
    samples = trainer.run.samples()
    assert samples
    for row in samples:
        text, number = row["response"], int(row["prompt"][0])
        right = float(text.strip() == str(2 * number))
        of_some = 0.1 * len(text) if number % 2 else 0.0
        expected = 0.1 * row["length"] + any(c.isdigit() for c in text) + right + of_some + 0.5 * ("=" in text)
        assert row["reward"] == pytest.approx(expected)


def test_adapters_on_a_loaded_model() -> None:
    trainer = run("adapters")["trainer"]
    assert trainer.run.metrics.iloc[-1]["updates"] == 4.0
    assert (trainer.run.folder / "given" / "model" / "config.json").is_file()


def test_a_run_is_continued_and_not_repeated() -> None:
    script = run("unique_characters")
    first = script["trainer"]
    again = type(first)(
        "tiny",
        script["reward_num_unique_chars"],
        script["training_args"],
        script["dataset"].select(range(12)),
        script["dataset"].select(range(12, 16)),
    )
    with pytest.raises(ConfigError, match="call train"):
        again.save_model()
    assert again.train(resume_from_checkpoint=True) == first.train()
    with pytest.raises(ConfigError, match="is not in tiny-GRPO"):
        again.train(resume_from_checkpoint="elsewhere/checkpoint-1")


def test_callbacks_of_transformers_watch_a_run_and_end_it() -> None:
    from transformers import TrainerCallback

    seen: list[Any] = []

    class Watch(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append((args.output_dir, state.max_steps))

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            seen.append(state.global_step)
            control.should_training_stop |= state.global_step == 4
            return control

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            seen.append(("log", logs["step"], "reward" in logs))

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
            seen.append(("eval", "eval_reward" in metrics))

    def own(event: vz.Event) -> None:
        seen.append(event.kind)

    script = run("unique_characters")
    data, args = script["dataset"].select(range(12)), script["training_args"]
    args.output_dir = "watched"

    def trainer(*callbacks: Any) -> GRPOTrainer:
        rewards = script["reward_num_unique_chars"]
        return GRPOTrainer("tiny", rewards, args, data, data.select(range(4)), callbacks=list(callbacks))

    stopped = trainer(Watch, own)
    assert stopped.train().global_step == 4
    step = [[1, "step"], [2, ("log", 2, True), "step"], [3, "step", ("eval", True), "evaluation"]]
    assert seen[: len(seen) - 3] == [("watched", 6), *step[0], *step[1], *step[2]]
    assert seen[-3:] == [4, ("log", 4, True), "step"]
    assert stopped.train().global_step == 6
    assert [row["step"] for row in stopped.state.log_history if "loss" in row] == [2, 4, 6]
    for name, reason in {"on_save": "has on_save, which is not called", "on_step_end": "control.should_save"}.items():

        def asks(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_save = True

        args.output_dir = name
        with pytest.raises(vz.VerizeroError, match=reason):
            trainer(type("Asks", (TrainerCallback,), {name: asks})).train()
