"""The column of PrimeIntellect's SYNTHETIC: {"test_cases": [..], "language"}, as JSON or as Python writes it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.pipeline.files import parse_json
from verizero.verifiers.layouts.base import Reference, Suite, language_of
from verizero.verifiers.layouts.synthetic import suite

VERIFIER = "code"
KEYS = ("verification_info",)
OTHERS = (
    "source", "task_type", "in_source_id", "problem_id", "prompt", "gold_standard_solution", "metadata",
)  # fmt: skip


def read(reference: Reference) -> Suite:
    """Return the tests of the column."""
    info = _as_object(reference["verification_info"])
    tests = suite(info.get("test_cases"))
    if tests is None or info.keys() - {"test_cases", "language", "ground_truth"}:
        raise DataError(
            f"reference.verification_info: expected 'test_cases' and 'language', got {str(dict(info))[:60]}"
        )
    if "language" not in info:
        return tests
    return Suite(tests.mode, tests.tests, tests.alternative, language=language_of(info["language"]))


def _as_object(info: Any) -> Mapping[str, Any]:
    if isinstance(info, str):
        try:
            info = parse_json(info)
        except (ValueError, RecursionError):
            try:
                info = ast.literal_eval(info)
            except (ValueError, SyntaxError, RecursionError, MemoryError) as exc:
                raise DataError(f"reference.verification_info: neither JSON nor Python ({exc})") from exc
    if not isinstance(info, Mapping):
        raise DataError(f"reference.verification_info: expected an object, got {info!r:.60}")
    return info
