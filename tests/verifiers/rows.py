"""Labelled answers for the verifiers that need no sandbox, most of them in rows.jsonl; attacks among them."""

import json
from pathlib import Path
from typing import Any

Row = tuple[str, dict[str, Any], Any, str, float | str]
"""(verifier, params, reference, response, wanted): a score, or the status where nothing is graded."""
FILE = Path(__file__).with_name("rows.jsonl")
LARGE: list[Row] = [
    ("numeric", {}, 5, "9" * 5_000, 0),
    ("numeric", {}, float("inf"), "5", "verifier_error"),
    ("countdown", {}, {"numbers": [3, 5], "target": 8}, "(" * 5_000 + "3" + ")" * 5_000, 0),
    ("json_schema", {}, {"equals": []}, "[" * 100_000, 0),
    ("json_schema", {}, {"equals": 1}, "1" * 10_000, 0),
]
"""What would make long lines, or is no JSON."""
WITHOUT_SANDBOX: list[Row] = [
    (r["verifier"], r.get("params", {}), r["reference"], r["response"], r["wanted"])
    for r in map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
] + LARGE
