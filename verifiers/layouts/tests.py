"""Our own tests of inputs and outputs: {"tests": [{"args", "expected"} or {"input", "output"}, ..], "fn"?}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.verifiers.layouts._io_tests import call_test, require_keys, stdin_test
from verizero.verifiers.layouts.base import Reference, Suite, Test

VERIFIER = "code"
KEYS = ("tests",)
OTHERS = ("fn", "fn_name")
TYPED = ("testtype", "type")
"""Keys of tests of other layouts."""


def read(reference: Reference) -> Suite | None:
    """Return the tests; None if they are source, or say their type."""
    tests = reference["tests"]
    if not isinstance(tests, list) or any(
        isinstance(t, str) or (isinstance(t, Mapping) and t.keys() & TYPED) for t in tests
    ):
        return None
    fn = reference.get("fn") or reference.get("fn_name")
    made = [_test(test, fn, f"reference.tests[{i}]") for i, test in enumerate(tests)]
    if len({"fn" in test for test in made}) > 1:
        raise DataError("reference.tests: stdin tests and function tests are mixed; split the row in two")
    if fn and made and "fn" not in made[0]:
        raise DataError(f"reference.fn is {fn!r}, and the tests have 'input' and 'output'; give 'args' and 'expected'")
    return Suite("function" if made and "fn" in made[0] else "stdin", tuple(made))


def _test(test: Any, fn: Any, where: str) -> Test:
    if not isinstance(test, Mapping):
        raise DataError(f"{where}: expected an object, got {test!r:.60}")
    if "args" in test or "expected" in test:
        require_keys(test, ("args", "expected"), ("fn", "kwargs"), where)
        return call_test(test.get("fn") or fn, test["args"], test["expected"], where, test.get("kwargs"))
    if not test.keys() & {"input", "output"}:
        raise DataError(
            f"{where}: expected 'input' and 'output', or 'args', 'expected' and 'fn'; "
            f"got the keys {', '.join(sorted(map(str, test))) or 'none'}"
        )
    require_keys(test, ("input", "output"), (), where)
    return stdin_test(test["input"], test["output"], where)
