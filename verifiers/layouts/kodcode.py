"""KodCode: a file of pytest, which may begin with `from solution import f`."""

from __future__ import annotations

from verizero.verifiers.layouts._sources import parsed
from verizero.verifiers.layouts.base import Asserts, Reference, text_of

VERIFIER = "unit_tests"
KEYS = ("test",)
OTHERS = (
    "solution", "setup", "version", "style", "subset", "question_id", "question", "test_info", "gpt_pass_sequence",
    "gpt_pass_trial_num", "gpt_difficulty", "gpt_pass_percentage", "trials", "chat_format", "metadata", "filter_reason",
    "benchmark_similarity", "benchmark_instance", "benchmark_task_id",
)  # fmt: skip


def read(reference: Reference) -> Asserts:
    """Return the tests."""
    parsed(reference["test"], "reference.test")
    return Asserts(reference["test"], text_of(reference.get("setup", ""), "reference.setup"))
