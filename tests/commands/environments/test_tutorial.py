"""The tutorial of environments: its files and commands, as a reader would use them in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.commands.verifiers.test_tutorial import follow
from tests.source import ROOT

TUTORIAL = (ROOT / "docs" / "tutorial-environment.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```(?:python|yaml) (\S+)\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL))
COMMANDS = [
    line
    for b in re.findall(r"^```bash\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL)
    for line in b.split("\n")
    if line
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_tutorial_has_all_its_steps() -> None:
    assert sorted(FILES) == ["make_rows.py", "number_game.py", "number_game.yaml", "test_number_game.py"]
    starts = [" ".join(c.split()[:2]) for c in COMMANDS]
    assert starts == [
        "python make_rows.py",
        "verizero environment",
        "python -m",
        "verizero train",
        "verizero replay",
        "verizero new",
    ]


@pytest.mark.integration
def test_everything_before_the_training_works(folder: Path) -> None:
    printed = [follow(command, folder) for command in COMMANDS if command.split()[1] not in ("train", "replay")]
    shown = re.findall(r"^ok   .*$", TUTORIAL, re.MULTILINE)
    assert len(shown) == 6
    assert [line for line in printed[1].splitlines() if line.startswith("ok")] == shown
    assert "4 passed" in printed[2]
    for name in re.findall(r"wrote (\S+)", printed[3]):
        assert f"`{Path(name).name}`" in TUTORIAL


@pytest.mark.integration
def test_its_recipe_reads_its_rows_and_has_their_characters(folder: Path) -> None:
    from verizero.pipeline.config.load import load_recipe
    from verizero.pipeline.data.prompts import load_prompts
    from verizero.pipeline.run.episodes import bind_environments

    follow(COMMANDS[0], folder)
    config = load_recipe(folder / "number_game.yaml")
    prompts = load_prompts([*config.data.train, *config.data.evaluation], config.seed, folder)
    (game,) = bind_environments(prompts, config.data.environments, folder).values()
    words = {m.content for p in prompts for m in p.demonstration or ()} | {p.question for p in prompts}
    episode = game.make(prompts[0], 0, 0)
    words |= {m.content for m in episode.step(episode_message("x")).messages}
    assert set("".join(words)) <= set(yaml.safe_load(FILES["number_game.yaml"])["model"]["create"]["characters"])


def episode_message(text: str) -> object:
    from verizero.pipeline.types import Message

    return Message("assistant", text)


@pytest.mark.integration
@pytest.mark.slow
def test_the_training_of_the_tutorial_runs_and_its_games_replay(folder: Path) -> None:
    """The tutorial's commands with few steps: its own numbers come from the whole of it."""
    follow(COMMANDS[0], folder)
    few = " --set sft.steps=100 --set rl.rounds=1 --set rl.steps_per_round=2 --set rl.prompts_per_step=16"
    out = follow(next(c for c in COMMANDS if c.startswith("verizero train")) + few, folder)
    line = next(x for x in out.splitlines() if x.startswith("default"))
    before, after = map(float, re.findall(r"pass@1 (\d\.\d+) -> (\d\.\d+)", line)[0])
    assert 0.02 < before < 0.6
    assert after > 0.02
    played = follow(next(c for c in COMMANDS if c.startswith("verizero replay")), folder)
    assert "equal to the record" in played
