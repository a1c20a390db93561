"""Wrong values of forms: each is refused by field, value and remedy, before anything that takes time is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.flows.served import ROOT

ROW = {"id": 1, "verifier": "math", "reference": "2", "response": "2"}
DEMO = {"recipe": "demo_short"}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("train", {**DEMO, "rounds": 0}, "rounds must be a whole number >= 1, got 0; leave it empty"),
    ("train", {"recipe": "demo_shirt"}, "recipe='demo_shirt' is no recipe; did you mean demo_short"),
    ("train", {**DEMO, "stages": ["rlx"]}, "no stage 'rlx'; it has sft, rl"),
    (
        "train",
        {**DEMO, "run_name": "a/b"},
        "name: String should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]*$', got 'a/b'",
    ),
    ("train", {**DEMO, "overrides": {"rl.grup_size": 8}}, "unknown key 'rl.grup_size'; did you mean group_size?"),
    ("train", {**DEMO, "overrides": [1]}, 'overrides must be an object of dotted names, e.g. {"rl.group_size": 8}'),
    ("sft", {**DEMO, "overrides": {"sft.steps": -1}}, "sft.steps: Input should be greater than or equal to 1, got -1"),
    (
        "evaluate",
        {**DEMO, "overrides": {"evaluation.k": 0}},
        "evaluation.k: Input should be greater than or equal to 1",
    ),
    ("compare", {"recipes": ["demo_short"], "seeds": 0}, "seeds must be >= 1, got 0"),
    ("compare", {"recipes": ["demo_short"], "tokens": 0}, "tokens must be >= 1, got 0; leave it out"),
    ("compare", {"recipes": ["demo_short"], "start": "nowhere"}, "start='nowhere' is no folder of a model; give one"),
    ("rl-rounds", {**DEMO, "campaign": "a/b"}, "campaign: String should match pattern"),
    ("rl-rounds", {**DEMO, "campaign": "a", "rounds": 0}, "rounds: Input should be greater than or equal to 1, got 0"),
    ("rl-rounds", {**DEMO, "campaign": "a", "target": 2}, "target: Input should be less than or equal to 1, got 2"),
    ("rl-rounds", {**DEMO, "campaign": "a", "max_hours": 0}, "max_hours: Input should be greater than 0, got 0"),
    (
        "verify-dataset",
        {"rows": "nowhere.jsonl"},
        "nowhere.jsonl: No such file or directory; give a file of JSON lines",
    ),
    ("verify-dataset", {"rows": "rows.jsonl", "batch": 0}, "batch must be >= 1, got 0"),
    (
        "audit-verifier",
        {"rows": "nowhere.jsonl"},
        "nowhere.jsonl: No such file or directory; give a file of JSON lines",
    ),
    (
        "promote",
        {"run": "nowhere", "answer_within_hours": 0},
        "answer_within_hours must be above 0, got 0; the default",
    ),
    ("promote", {"run": "nowhere"}, "nowhere holds no metrics.jsonl; name the folder of a run, e.g. runs/demo"),
]


@pytest.mark.integration
def test_a_wrong_value_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
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
        assert wanted in text, (flow, parameters)
        assert not has_torch or flow == "promote", (flow, parameters)  # which reads the run's files with it
    left = {p.name for p in tmp_path.iterdir() if not p.name.startswith(".")}  # what libraries keep in a home is theirs
    assert left == {"rows.jsonl", "cases.json"}
