"""What `pip install verizero` brings: one package with every part, which works next to a library with a part's name."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.checks.recorded import OF_TRL, unpack
from tests.environments.packages import venv_with
from tests.host.test_child import NAMES
from tests.source import CODE, PACKAGE, ROOT
from tests.stages.test_ended import JUDGE, ODD
from tests.stages.test_stale import rows
from verizero.pipeline.errors import TRAIN_EXTRA, TRAINING

PARTS = (*CODE, "configs", "examples")
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

# the library plays an episode in the same interpreter
from verizero.pipeline.environments.base import load
from verizero.pipeline.types import Message, Prompt

params = {"package": "double_it", "taskset": {"first": 3}, "reward_range": [0, 2]}
bound = load("verifiers_package").bind({**params, "variables": {"PYTHONPATH": TASKS}})
episode = bound.make(Prompt("p", "", "environment", 1), 1, 2)
print(episode.start().messages[-1].content)
outcome = episode.step(Message("assistant", "9")).outcome
print(outcome.status, outcome.score, outcome.reason)
episode.close()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
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
def python(wheel, tmp_path_factory):
    """An interpreter that has the wheel, what it needs, and the library `verifiers`."""
    folder = venv_with(tmp_path_factory.mktemp("venv") / "both", "verifiers==0.4.0")
    install = ["-m", "pip", "install", "-q", "--no-deps", "--ignore-installed", "--no-compile", str(wheel)]
    subprocess.run([folder / "bin" / "python", *install], check=True, timeout=600)
    return folder / "bin" / "python"


def required(distribution):
    """The names of a distribution and of all that it requires, its extras left out."""
    found, left = set[str](), [distribution]
    while left:
        name = left.pop()
        found.add(name)
        asked = map(Requirement, importlib.metadata.requires(name) or ())
        left += [r.name for r in asked if (not r.marker or r.marker.evaluate({"extra": ""})) and r.name not in found]
    return found


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    """An interpreter that has the package and what its wheel requires without extras: links to what is here."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / PACKAGE).symlink_to(ROOT / PACKAGE)  # equal to the wheel's, and compiled already
    packed = zipfile.ZipFile(wheel)
    packed.extractall(site, [name for name in packed.namelist() if ".dist-info/" in name])
    (metadata,) = importlib.metadata.distributions(path=[str(site)])
    asked = [r for r in map(Requirement, metadata.requires or ()) if not r.marker or r.marker.evaluate({"extra": ""})]
    for name in {n for r in asked for n in required(r.name)}:
        distribution = importlib.metadata.distribution(name)
        for top in {f.parts[0] for f in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))).absolute())
    return folder / "bin" / "python"


@pytest.fixture
def there(tmp_path):
    """A user's folder with a file that has the name of a part."""
    (tmp_path / "pipeline.py").write_text("MINE = True\n")
    return tmp_path


@pytest.mark.run
@pytest.mark.nightly
def test_a_wheel_has_one_name_with_every_part_and_nothing_else(wheel):
    source = wheel.parent / "source"
    files = {f.relative_to(source) for name in PARTS for f in (source / name).rglob("*") if f.is_file()}
    own = {f"{PACKAGE}/{f.name}" for f in (source / PACKAGE).iterdir() if f.is_file()}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == own | {f"{PACKAGE}/{f.as_posix()}" for f in files}


def test_the_extra_that_errors_name_brings_what_the_core_lacks():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["train"]
    core, more = (
        {canonicalize_name(n) for asked in names for n in required(Requirement(asked).name)}
        for names in (project["dependencies"], extra)
    )
    installed = importlib.metadata.packages_distributions()
    homes = {m: {canonicalize_name(d) for d in installed[m]} for m in TRAINING}
    assert {m for m, distributions in homes.items() if not distributions <= more - core} == set()
    assert {canonicalize_name(Requirement(asked).name) for asked in extra} <= set().union(*homes.values())
    assert TRAIN_EXTRA == "pip install '.[train]'"


@pytest.mark.run
@pytest.mark.nightly
def test_the_core_diagnoses_audits_verifies_and_has_a_sandbox(core, there):
    """One process each, all at once: each loads its libraries for a second."""
    unpack(OF_TRL / "rate_of_pretraining-0.tar.xz", there / "trl")
    (there / "r.py").write_text("def right(completion, answer):\n    return float(answer in completion)\n")
    rows = [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(8)]
    (there / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    row = {"id": "a", "verifier": "math", "reference": "1/2", "response": "so \\boxed{0.5}"}
    (there / "answers.jsonl").write_text(json.dumps(row) + "\n")
    commands = {
        "diagnose trl --html page.html": r"(?s)PROBLEM  learning_rate_high.*in 24 RL steps",
        "audit --reward r.py:right rows.jsonl": r"the answer alone +1\.00 +0\.00",
        "verify answers.jsonl": '"status": "graded", "score": 1.0',
        "train demo": rf"\Averizero: No module named '\w+': .*{re.escape(TRAIN_EXTRA)}\n\Z",
        "doctor": rf"(?s)missing  torch +{re.escape(TRAIN_EXTRA)}.*sandbox +isolation level",
    }
    ask = (
        f"import importlib.util as u; print([n for n in {TRAINING} if u.find_spec(n)]); import verizero as vz; vz.train"
    )
    program = [core, "-m", "verizero.pipeline.cli"]
    asked = {what: [*program, *what.split()] for what in commands} | {"vz.train": [core, "-c", ask]}
    commands["vz.train"] = rf"(?s)\A\[\]\n.*RunError: No module named .*{re.escape(TRAIN_EXTRA)}\n\Z"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": there}
    started = {what: subprocess.Popen(words, **pipes) for what, words in asked.items()}
    said = {what: process.communicate(timeout=120)[0] for what, process in started.items()}
    assert {what: text for what, text in said.items() if not re.search(commands[what], text)} == {}
    assert (there / "page.html").is_file()
    assert not (there / "runs").exists()


@pytest.mark.run
@pytest.mark.nightly
def test_all_names_are_found_next_to_the_library_verifiers_which_plays(python, there):
    (there / "look.py").write_text(f"TASKS = {str(TASKS)!r}\n{FOUND}")
    done = subprocess.run([python, "look.py"], cwd=there, capture_output=True, text=True, timeout=120)
    assert done.stdout == "twice 4?\ngraded 0.0 reward 0: agent_completed\n", done.stderr


@pytest.mark.run
@pytest.mark.nightly
def test_the_installed_program_trains_among_files_of_any_name(python, there):
    """With a server and a verifier in a file, and none of the files that cannot be imported."""
    for name in NAMES:
        (there / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the working folder was imported')\n")
    rows(there)
    (there / "judge.py").write_text(JUDGE.format(ODD))
    source = {"file": str(there / "rows.jsonl"), "verifier": {"path": str(there / "judge.py:judge")}}
    changes = [
        *("sft.steps=4", "rl.rounds=1", "rl.steps_per_round=2", "rl.prompts_per_step=4", "rl.select.keep=all"),
        *("evaluation.before_training=false", "evaluation.limit=4", "evaluation.k=2", "scoring.overlap=true"),
        f"data.train={json.dumps([source])}",
        "data.sampling.weights=null",
    ]
    command = [python.with_name("verizero"), "train", "demo_short", *(w for c in changes for w in ("--set", c))]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PYTHON"))}
    done = subprocess.run(command, cwd=there, env=own, capture_output=True, text=True, timeout=480)
    assert done.returncode == 0, done.stderr
    assert "working folder was imported" not in done.stderr
    (report,) = there.glob("runs/*/report.html")
    ask = f"import verizero as vz; run = vz.TrainedRun({str(report.parent)!r}); print(len(run.metrics), run.results)"
    done = subprocess.run([python, "-P", "-c", ask], cwd=there, capture_output=True, text=True, timeout=120)
    assert re.match(r"6 .*pass@1", done.stdout, re.DOTALL), done.stderr
