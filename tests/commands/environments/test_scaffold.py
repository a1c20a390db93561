"""The files that `verizero new environment` writes work without a change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from verizero.pipeline.cli import main
from verizero.pipeline.commands.environments.scaffold import GAMES, LETTERS, TRIES, new_environment
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.data.prompts import load_prompts, read_demonstrations
from verizero.pipeline.environments.base import load
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.types import Message, Prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("game")
    written = {p.name for p in new_environment("my_game", made)}
    endings = ("my_game.py", "test_my_game.py", "my_game_train.jsonl", "my_game_evaluation.jsonl", "my_game.yaml")
    assert written == set(endings) == {p.name for p in made.iterdir()}
    return made


def rows(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / f"my_game_{name}.jsonl").read_text().splitlines()]


@pytest.mark.integration
def test_its_own_tests_pass(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "test_my_game.py")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


def test_its_games_are_those_of_its_environment(folder: Path) -> None:
    bound = load(path="my_game.py:my_game", base=folder).bind({"tries": TRIES})
    won = 0.0
    for row in rows(folder, "train"):
        environment = bound.make(Prompt(row["id"], row["question"], "environment", row["answer"]), 0, 0)
        environment.start()
        shown: list[dict] = []
        for message in (m for m in row["demonstration"] if m["role"] == "assistant"):
            reply = environment.step(Message("assistant", message["content"]))
            shown += [message, *({"role": m.role, "content": m.content} for m in reply.messages)]
        assert shown == row["demonstration"]
        assert reply.done
        won += reply.outcome.score
    assert 0.4 < won / (GAMES * len(LETTERS)) < 0.8, "something is left to learn"


def test_its_recipe_reads_its_rows_and_its_characters_write_them(folder: Path) -> None:
    recipe = yaml.safe_load((folder / "my_game.yaml").read_text())
    (source,) = recipe["data"]["train"]
    load(path=source["environment"]["path"], base=folder).bind(source["environment"]["params"])
    texts = [r["question"] + "\n" + "".join(m["content"] for m in r["demonstration"]) for r in rows(folder, "train")]
    assert set("".join(texts)) == set(recipe["model"]["create"]["characters"])
    assert {r["answer"] for r in rows(folder, "evaluation")} == set(LETTERS)
    assert {r["verifier"] for r in rows(folder, "train") + rows(folder, "evaluation")} == {"environment"}


def test_its_recipe_loads_with_its_rows(folder: Path) -> None:
    config = load_recipe(folder / "my_game.yaml")
    train = load_prompts(config.data.train, config.seed, folder)
    assert {p.verifier for p in train} == {"environment"}
    (choice,) = config.data.environments.values()
    assert {p.environment for p in train} == {choice.key}
    shown = read_demonstrations(config.data.demonstrations, config.data.train, config.seed, folder).prompts
    assert len(shown) == GAMES * len(LETTERS)


@pytest.mark.parametrize("name", ["my-game", "class", "_hidden", "", "guess"])
def test_a_name_that_cannot_be_one_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="environment"):
        new_environment(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("precious")
    with pytest.raises(ConfigError, match=r"mine.yaml is already there"):
        new_environment("mine", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "environment", "mine", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("wrote ") == 5
