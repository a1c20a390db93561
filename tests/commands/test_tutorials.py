"""The tutorials: their files and commands, as a reader would use them one after another in an empty folder."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.source import ROOT
from tests.warm import warm

pytestmark = [pytest.mark.run, pytest.mark.nightly]


class Tutorial:
    """A page: its text, the files that it has the reader write, and its commands."""

    def __init__(self, name):
        self.text = (ROOT / "docs" / f"tutorial-{name}.md").read_text(encoding="utf-8")
        self.files = dict(self.blocks(r"(?:python|yaml) (\S+)"))
        self.commands = [line for block in self.blocks("bash") for line in block.splitlines() if line]
        self.training = next(c for c in self.commands if c.startswith("verizero train"))

    def blocks(self, head):
        return re.findall(rf"^```{head}\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)

    def before_training(self, folder):
        """Return what each command prints, but for the training."""
        return {c: follow(c, folder) for c in self.commands if not c.startswith("verizero train")}


VERIFIER, ENVIRONMENT = Tutorial("verifier"), Tutorial("environment")


def follow(command, folder):
    """What a command prints, with this interpreter's programs first on the path and this checkout importable."""
    tools = Path(sys.executable).parent
    words = command.split()
    if words[0] == "verizero":
        words = [sys.executable, "-m", "verizero.pipeline.cli", *words[1:]]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path}
    started = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "timeout": 900, "check": False}
    run = partial(warm().call, subprocess.run) if words[3:4] == ["train"] else subprocess.run
    done = run(words, **started)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def rates(printed, name):
    """Return pass@1 before and after, as a training prints them."""
    line = next(x for x in printed.splitlines() if x.startswith(name))
    before, after = map(float, re.findall(r"pass@1 (\d\.\d+) -> (\d\.\d+)", line)[0])
    return before, after


def test_a_verifier_is_written_as_shown_checked_and_audited(tmp_path):
    said = VERIFIER.before_training(tmp_path)
    checked = next(text for command, text in said.items() if "--check" in command)
    shown = re.findall(r"^ok   .*$", VERIFIER.text, re.MULTILINE)
    assert len(shown) == 8
    assert [line for line in checked.splitlines() if line.startswith("ok")] == shown
    assert "all checks passed" in checked
    audited = next(text for command, text in said.items() if "audit" in command)
    assert re.search(r"ok   answers without content earn nothing \(\d+ checked\)", audited)
    written = (tmp_path / "my_domain.py").read_text()
    for line in VERIFIER.blocks("python")[0].splitlines():
        assert line.strip() in ("...", "") or line in written, line
    recipe = (tmp_path / "my_domain.yaml").read_text()
    for line in VERIFIER.blocks("yaml")[0].splitlines():
        assert line in recipe, line


def test_the_training_with_a_verifier_learns(tmp_path):
    """After SFT about two thirds are right; RL with the reader's own verifier lifts it."""
    follow(VERIFIER.commands[0], tmp_path)
    before, after = rates(follow(VERIFIER.training, tmp_path), "my_domain")
    assert before < 0.8
    assert after > before + 0.1


@pytest.fixture
def folder(tmp_path):
    for name, text in ENVIRONMENT.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_an_environment_is_checked_tested_and_copied(folder):
    printed = list(ENVIRONMENT.before_training(folder).values())
    shown = re.findall(r"^ok   .*$", ENVIRONMENT.text, re.MULTILINE)
    assert len(shown) == 5
    assert [line for line in printed[1].splitlines() if line.startswith("ok")] == shown
    assert "4 passed" in printed[2]
    for name in re.findall(r"wrote (\S+)", printed[3]):
        assert f"`{Path(name).name}`" in ENVIRONMENT.text


def test_the_training_with_an_environment_runs(folder):
    """In few steps: the tutorial's own numbers come from the whole of it."""
    follow(ENVIRONMENT.commands[0], folder)
    few = " --set sft.steps=100 --set rl.rounds=1 --set rl.steps_per_round=2 --set rl.prompts_per_step=16"
    before, after = rates(follow(ENVIRONMENT.training + few, folder), "default")
    assert 0.02 < before < 0.6
    assert after > 0.02
