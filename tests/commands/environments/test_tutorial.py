"""The tutorial of environments: its files and commands, as a reader would use them in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


@pytest.mark.run
@pytest.mark.nightly
def test_everything_before_the_training_works(folder: Path) -> None:
    printed = [follow(command, folder) for command in COMMANDS if command.split()[1] != "train"]
    shown = re.findall(r"^ok   .*$", TUTORIAL, re.MULTILINE)
    assert len(shown) == 5
    assert [line for line in printed[1].splitlines() if line.startswith("ok")] == shown
    assert "4 passed" in printed[2]
    for name in re.findall(r"wrote (\S+)", printed[3]):
        assert f"`{Path(name).name}`" in TUTORIAL


@pytest.mark.run
@pytest.mark.nightly
def test_the_training_of_the_tutorial_runs(folder: Path) -> None:
    """The tutorial's commands with few steps: its own numbers come from the whole of it."""
    follow(COMMANDS[0], folder)
    few = " --set sft.steps=100 --set rl.rounds=1 --set rl.steps_per_round=2 --set rl.prompts_per_step=16"
    out = follow(next(c for c in COMMANDS if c.startswith("verizero train")) + few, folder)
    line = next(x for x in out.splitlines() if x.startswith("default"))
    before, after = map(float, re.findall(r"pass@1 (\d\.\d+) -> (\d\.\d+)", line)[0])
    assert 0.02 < before < 0.6
    assert after > 0.02
