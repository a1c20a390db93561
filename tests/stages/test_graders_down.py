"""Runs, evaluations and samples whose graders fail on everything: they end with the reason, and can be continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stages.test_stale import SHORT, rows
from tests.stages.tiny import TREE
from verizero.pipeline.cli import main
from verizero.pipeline.config.merge import merge

CHECK = """
from pathlib import Path
from verizero.pipeline.types import Verdict
from verizero.verifiers.base import VerifierParams, verifier

@verifier
def judge(attempt, params: VerifierParams):
    if (Path(__file__).parent / "down").exists():
        raise ConnectionError("the judge is down")
    return Verdict("graded", float(len(attempt.response) % 2))
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with rows and a verifier, which fails while there is a file `down`."""
    monkeypatch.chdir(tmp_path)
    rows(tmp_path)
    (tmp_path / "judge.py").write_text(CHECK)
    (tmp_path / "down").touch()
    return tmp_path


def recipe(base: Path, **changes: Any) -> str:
    source = {"file": "rows.jsonl", "verifier": {"path": "judge.py:judge"}}
    tree = merge(merge(TREE, SHORT), {"name": "down", "scoring": {"retries": 0}})
    tree |= {"stages": ["sft", "rl"], "data": {"train": [source], "evaluation": []}, **changes}
    (base / "down.yaml").write_text(yaml.safe_dump(tree))
    return str(base / "down.yaml")


@pytest.mark.integration
def test_a_run_ends_with_an_error_and_without_a_model_and_goes_on_later(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", recipe(base), "--no-prefect"]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "graders failed and nothing trained in 2 steps in a row" in said
    assert "ConnectionError: the judge is down" in said
    assert not (base / "runs" / "down" / "model").exists()
    (base / "down").unlink()
    assert main(command) == 0
    assert (base / "runs" / "down" / "model").is_dir()


@pytest.mark.integration
def test_an_evaluation_ends_with_an_error_in_a_run_and_alone(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if only one of its domains has no verdict: nothing is known of that one."""
    rows(base / "held")
    text = (base / "held" / "rows.jsonl").read_text()
    (base / "held" / "rows.jsonl").write_text(text.replace('"s', '"e').replace("+2=", "+2 ="))
    held = {"file": "held/rows.jsonl", "verifier": {"path": "judge.py:judge"}, "domain": "judged"}
    sums = {**TREE["data"]["evaluation"][0], "domain": "sums"}
    path = recipe(base, data={"train": [{"file": "rows.jsonl", "verifier": "math"}], "evaluation": [sums, held]})
    assert main(["train", path, "--no-prefect"]) == 1
    assert "evaluate before training, domain 'judged': graders failed on all 36 responses" in capsys.readouterr().err
    assert main(["evaluate", path]) == 1
    assert "domain 'judged': graders failed on all" in capsys.readouterr().err
    (base / "down").unlink()
    assert main(["evaluate", path]) == 0


@pytest.mark.integration
def test_sampling_ends_with_an_error(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recipe(base, stages=["sft", {"name": "sample", "kind": "sample"}], sample={"samples": 2})
    assert main(["train", path, "--no-prefect"]) == 1
    assert "graders failed on all 24 responses, first with verifier_error" in capsys.readouterr().err
    assert main(["rate", path, "-n", "2", "--out", "rated.jsonl"]) == 1
    assert "graders failed on all 24 responses" in capsys.readouterr().err
    assert not (base / "rated.jsonl").exists()
