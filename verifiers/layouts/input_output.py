"""The column of APPS and TACO that holds their tests: {"input_output": JSON text}."""

from __future__ import annotations

from verizero.verifiers.layouts.base import Reference, Tests, layout_of

VERIFIER = "code"
KEYS = ("input_output",)
OTHERS = (
    "problem_id", "question", "solutions", "starter_code", "difficulty", "url", "tags", "raw_tags", "source", "name",
    "picture_num", "skill_types", "Expected Time Complexity", "Expected Auxiliary Space", "time_limit", "memory_limit",
    "date",
)  # fmt: skip


def read(reference: Reference) -> Tests:
    """Return the tests in the column."""
    return layout_of(reference["input_output"])[1]
