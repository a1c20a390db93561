"""Wrong values of forms: each is refused by field, value and remedy, before anything that takes time is loaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.flows.served import ROOT

DEMO = {"recipe": "demo_short"}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("train", {**DEMO, "rounds": 0}, "rounds .*0;"),
    ("train", {"recipe": "demo_shirt"}, "recipe='demo_shirt' .*demo_short"),
    ("train", {**DEMO, "stages": ["rlx"]}, "'rlx'.* sft, rl"),
    ("train", {**DEMO, "folder": "a/b"}, "name: .*'a/b'"),
    ("train", {**DEMO, "overrides": {"rl.grup_size": 8}}, "'rl.grup_size'.* group_size"),
    ("train", {**DEMO, "overrides": [1]}, 'overrides .*{"rl.group_size": 8}'),
    ("train", {**DEMO, "overrides": {"sft.steps": -1}}, "sft.steps: .* -1"),
    ("evaluate", {**DEMO, "overrides": {"evaluation.k": 0}}, "evaluation.k: "),
    ("rl-rounds", {**DEMO, "campaign": "a/b"}, "campaign: "),
    ("rl-rounds", {**DEMO, "campaign": "a", "rounds": 0}, "rounds: .* 0"),
    ("rl-rounds", {**DEMO, "campaign": "a", "target": 2}, "target: .* 2"),
    ("rl-rounds", {**DEMO, "campaign": "a", "max_hours": 0}, "max_hours: .* 0"),
    ("train", {**DEMO, "rounds": "three"}, "rounds must be a number, got 'three'"),
    ("promote", {"run": "nowhere", "answer_within_hours": 0}, "answer_within_hours .* 0"),
    ("promote", {"run": "nowhere", "answer_within_hours": "0.0"}, "answer_within_hours .* 0.0"),
    ("promote", {"run": "nowhere", "answer_within_hours": "72"}, "nowhere .*metrics.jsonl"),
    ("promote", {"run": "nowhere"}, "nowhere .*metrics.jsonl"),
]
"""Flow, fields, and the names and values that the message must have."""


@pytest.mark.run
def test_a_wrong_value_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text(json.dumps([case[:2] for case in CASES]))
    done = subprocess.run(
        [sys.executable, "-m", "tests.flows.forms_driver", "cases.json"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "DO_NOT_TRACK": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for (flow, parameters, wanted), (error, text, has_torch) in zip(CASES, answers, strict=True):
        assert error in ("ConfigError", "DataError", "RunError"), (flow, parameters, text)
        assert re.search(wanted, text), (flow, parameters, text)
        assert not has_torch or flow == "promote", (flow, parameters)  # which reads the run's files with it
    left = {p.name for p in tmp_path.iterdir() if not p.name.startswith(".")}  # what libraries keep in a home is theirs
    assert left == {"cases.json"}
