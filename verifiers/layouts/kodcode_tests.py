"""The tests of KodCode in our own key: {"tests": source with `from solution import f`, "setup"?}."""

from __future__ import annotations

from verizero.verifiers.layouts.base import Asserts, Reference, text_of
from verizero.verifiers.layouts.kodcode import file_tests

VERIFIER = "unit_tests"
KEYS = ("tests",)
OTHERS = ("setup", "fn")


def read(reference: Reference) -> Asserts | None:
    """Return the tests without the import; None if there is none."""
    tests = reference["tests"]
    if not isinstance(tests, str) or "from solution import" not in tests:
        return None
    return file_tests(tests, text_of(reference.get("setup", ""), "reference.setup"))
