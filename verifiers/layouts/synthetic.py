"""PrimeIntellect's SYNTHETIC: a list of tests with a `type`, function_call or stdin_stdout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.verifiers.layouts._io_tests import call_test, require_keys, stdin_test
from verizero.verifiers.layouts.base import Reference, Suite, Test

VERIFIER = "code"
KEYS = ("tests",)
OTHERS = ("fn_name",)


def read(reference: Reference) -> Suite | None:
    """Return the tests; None if none says its type."""
    return suite(reference["tests"], reference.get("fn_name"))


def suite(tests: Any, fn: Any = None) -> Suite | None:
    """Return the tests of a list; None if none of them says its type."""
    if not isinstance(tests, list) or not any(isinstance(t, Mapping) and "type" in t for t in tests):
        return None
    made = [_test(test, fn, f"reference test {i}") for i, test in enumerate(tests)]
    if len({"fn" in test for test in made}) > 1:
        raise DataError("reference: tests of both types; split the row in two")
    if "fn" not in made[0]:
        return Suite("stdin", tuple(made))
    if not all(isinstance(t["expected"], list) and len(t["expected"]) == 1 for t in made):
        return Suite("function", tuple(made))
    return Suite("function", tuple({**t, "expected": t["expected"][0]} for t in made), alternative=tuple(made))


def _test(test: Mapping[str, Any], fn: Any, where: str) -> Test:
    require_keys(test, ("type", "input", "output"), ("fn_name",), where)
    if test["type"] == "stdin_stdout":
        return stdin_test(test["input"], test["output"], where)
    if test["type"] != "function_call":
        raise DataError(f"{where}: type must be 'function_call' or 'stdin_stdout', got {test['type']!r:.40}")
    return call_test(test.get("fn_name") or fn, test["input"], test["output"], where)
