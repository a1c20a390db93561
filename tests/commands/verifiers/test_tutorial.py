"""The tutorial's commands, run as a reader would, one after another in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.warm import warm
from verizero import verifiers

ROOT = Path(verifiers.__file__ or "").resolve().parents[1]
TUTORIAL = ROOT / "docs" / "tutorial-verifier.md"
COMMANDS = [
    line for block in re.findall(r"```bash\n(.*?)```", TUTORIAL.read_text(), re.DOTALL) for line in block.splitlines()
]


def follow(command: str, folder: Path) -> str:
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


@pytest.mark.run
@pytest.mark.nightly
def test_everything_before_the_training_works(tmp_path: Path) -> None:
    said = {command: follow(command, tmp_path) for command in COMMANDS if not command.startswith("verizero train")}
    checked = next(text for command, text in said.items() if "--check" in command)
    shown = re.findall(r"^ok   .*$", TUTORIAL.read_text(), re.MULTILINE)
    assert len(shown) == 8
    assert [line for line in checked.splitlines() if line.startswith("ok")] == shown
    assert "all checks passed" in checked
    audited = next(text for command, text in said.items() if "audit" in command)
    assert re.search(r"ok   answers without content earn nothing \(\d+ checked\)", audited)


@pytest.mark.run
@pytest.mark.nightly
def test_the_verifier_that_the_tutorial_shows_is_the_one_that_is_written(tmp_path: Path) -> None:
    follow(COMMANDS[0], tmp_path)
    written = (tmp_path / "my_domain.py").read_text()
    shown = re.search(r"```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    assert shown is not None
    for line in shown[1].splitlines():
        assert line.strip() in ("...", "") or line in written, line
    recipe = (tmp_path / "my_domain.yaml").read_text()
    for line in re.findall(r"```yaml\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)[0].splitlines():
        assert line in recipe, line


@pytest.mark.run
@pytest.mark.nightly
def test_the_training_of_the_tutorial_learns(tmp_path: Path) -> None:
    """The whole tutorial: after SFT about two thirds are right; RL with the reader's own verifier lifts it."""
    import json

    follow(COMMANDS[0], tmp_path)
    out = follow(next(c for c in COMMANDS if c.startswith("verizero train")), tmp_path)
    line = next(x for x in out.splitlines() if x.startswith("my_domain"))
    before, after = map(float, re.findall(r"pass@1 (\d\.\d+) -> (\d\.\d+)", line)[0])
    assert before < 0.8
    assert after > before + 0.1
    assert json.loads((tmp_path / "runs" / "my_domain" / "summary.json").read_text())
