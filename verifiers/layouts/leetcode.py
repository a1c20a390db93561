"""LeetCodeDataset: `test` defines check(candidate), and `entry_point` is a method.

Its `prompt` has the imports that answers expect.
"""

from __future__ import annotations

from verizero.verifiers.layouts.base import Asserts, Reference
from verizero.verifiers.layouts.humaneval import check_tests

VERIFIER = "unit_tests"
KEYS = ("entry_point", "test")
OTHERS = (
    "prompt", "completion", "task_id", "setup", "question_id", "difficulty", "tags", "problem_description",
    "starter_code", "estimated_date", "input_output", "query", "response",
)  # fmt: skip


def read(reference: Reference) -> Asserts | None:
    """Return the tests; None if the function is no method."""
    return check_tests(reference) if "." in str(reference["entry_point"]) else None
