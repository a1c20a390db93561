"""A run whose verifier exits, hangs and returns nothing: those responses leave their groups, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.stages.test_stale import SHORT, rows
from tests.stages.tiny import TREE
from verizero.pipeline.cli import main
from verizero.pipeline.config.merge import merge

MINE = """
import sys, time
from verizero.verifiers.base import verifier

@verifier
def mine(attempt):
    print("graded", attempt.response)
    kind = len(attempt.response) % 7
    if kind == 1:
        sys.exit(0)
    if kind == 2:
        return None
    if kind == 3:
        time.sleep(1e6)
    return kind % 2
"""


@pytest.mark.integration
def test_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    rows(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    source = {"file": "rows.jsonl", "verifier": {"path": "mine.py:mine", "time_s": 0.5}}
    tree = merge(merge(TREE, SHORT), {"name": "odd", "scoring": {"retries": 0}})
    tree |= {"stages": ["sft", "rl"], "data": {"train": [source], "evaluation": []}}
    (tmp_path / "odd.yaml").write_text(yaml.safe_dump(tree))
    assert main(["train", "odd.yaml", "--no-prefect"]) == 0
    assert (tmp_path / "runs" / "odd" / "model").is_dir()
    assert "graded" not in capfd.readouterr().out
    written = (tmp_path / "runs" / "odd" / "rollouts.jsonl").read_text()
    for reason in ("SystemExit: 0, at", "returned None", "no verdict within 0.5 s, at"):
        assert reason in written
    assert '"status":"graded"' in written
