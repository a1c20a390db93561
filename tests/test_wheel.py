"""What `pip install verizero` brings: one package with every part, which works next to a library with a part's name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.environments.packages import venv_with
from tests.source import CODE, PACKAGE, ROOT

PARTS = (*CODE, "configs")
TASKS = ROOT / "tests" / "environments" / "verifiers_tasks"
FOUND = """
import pathlib, sys
import verifiers.v1, pipeline
import verizero as vz
from verizero.pipeline import cli, registry
from verizero.pipeline.config.recipes import RECIPES

library = pathlib.Path(verifiers.__file__).parent
assert library.parent == pathlib.Path(registry.__file__).parents[2], library
assert pathlib.Path(vz.__file__).parents[1] == library.parent, vz
assert all(getattr(vz, name).__module__.startswith("verizero.") for name in vz.__all__)
assert pipeline.MINE, "a file of the user's"
assert {"math", "code", "exact"} <= set(registry.names("verifiers"))
assert {"grpo", "ppo"} <= set(registry.names("algorithms"))
assert (RECIPES / "demo.yaml").is_file()
"""
EPISODE = """
from verizero.pipeline.environments.base import load
from verizero.pipeline.types import Message, Prompt

params = {"package": "double_it", "taskset": {"first": 3}, "reward_range": [0, 2]}
bound = load("verifiers_package").bind({**params, "variables": {"PYTHONPATH": TASKS}})
episode = bound.make(Prompt("p", "", "environment", 1), 1, 2)
print(episode.start().messages[-1].content)
print(episode.step(Message("assistant", "8")).outcome.score)
episode.close()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the sources, as in a clone: with links."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in (*PARTS, PACKAGE, "tests", "docs", "benchmarks"):
        shutil.copytree(
            ROOT / name, folder / "source" / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(folder / "source")]
    subprocess.run(build, check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}, timeout=600)
    (built,) = folder.glob("verizero-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the wheel, what it needs, and the library `verifiers`."""
    folder = venv_with(tmp_path_factory.mktemp("venv") / "both", "verifiers==0.4.0")
    install = ["-m", "pip", "install", "-q", "--no-deps", "--ignore-installed", "--no-compile", str(wheel)]
    subprocess.run([folder / "bin" / "python", *install], check=True, timeout=600)
    return folder / "bin" / "python"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A user's folder with a file that has the name of a part."""
    (tmp_path / "pipeline.py").write_text("MINE = True\n")
    return tmp_path


@pytest.mark.integration
def test_a_wheel_has_one_name_with_every_part_and_nothing_else(wheel: Path) -> None:
    source = wheel.parent / "source"
    files = {f.relative_to(source) for name in PARTS for f in (source / name).rglob("*") if f.is_file()}
    own = {f"{PACKAGE}/{f.name}" for f in (source / PACKAGE).iterdir() if f.is_file()}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == own | {f"{PACKAGE}/{f.as_posix()}" for f in files}


@pytest.mark.integration
@pytest.mark.slow
def test_all_names_are_found_next_to_the_library_verifiers(python: Path, there: Path) -> None:
    (there / "look.py").write_text(FOUND)
    done = subprocess.run([python, "look.py"], cwd=there, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.integration
@pytest.mark.slow
def test_the_library_plays_an_episode_in_the_same_interpreter(python: Path, there: Path) -> None:
    (there / "play.py").write_text(f"TASKS = {str(TASKS)!r}\n{EPISODE}")
    done = subprocess.run([python, "play.py"], cwd=there, capture_output=True, text=True, timeout=120)
    assert done.stdout == "twice 4?\n1.0\n", done.stderr


@pytest.mark.integration
@pytest.mark.slow
def test_the_installed_program_trains(python: Path, there: Path) -> None:
    command = [python.with_name("verizero"), "train", "demo_short", "--no-prefect"]
    fewer = ("sft.steps=4", "rl.steps_per_round=2", "rl.rounds=1", "evaluation.before_training=false")
    command += [word for change in fewer for word in ("--set", change)]
    done = subprocess.run(command, cwd=there, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (report,) = there.glob("runs/*/report.html")
    ask = f"import verizero as vz; run = vz.TrainedRun({str(report.parent)!r}); print(len(run.metrics), run.results)"
    done = subprocess.run([python, "-c", ask], cwd=there, capture_output=True, text=True, timeout=120)
    assert re.match(r"6 .*pass@1", done.stdout, re.DOTALL), done.stderr
