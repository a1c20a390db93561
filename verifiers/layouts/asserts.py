"""Our own tests in source: {"tests": source or [asserts], "setup"?, "fn"?, "prompt"?}."""

from __future__ import annotations

import ast

from verizero.pipeline.errors import DataError
from verizero.verifiers.layouts._sources import function_name, parsed
from verizero.verifiers.layouts.base import Asserts, Reference, text_of

VERIFIER = "unit_tests"
KEYS = ("tests",)
OTHERS = ("setup", "fn", "prompt")


def read(reference: Reference) -> Asserts | None:
    """Return the tests; None if they are tests of inputs and outputs."""
    tests = reference["tests"]
    if isinstance(tests, list) and tests and all(isinstance(t, str) for t in tests):
        tests = "\n".join(tests)
    if not isinstance(tests, str) or not tests.strip():
        return None
    tree = parsed(tests, "reference.tests")
    if not any(isinstance(n, ast.Assert | ast.FunctionDef | ast.ClassDef) for n in ast.walk(tree)):
        return None
    setup, prompt = (text_of(reference.get(key, ""), f"reference.{key}") for key in ("setup", "prompt"))
    for key, source in (("setup", setup), ("prompt", prompt)):
        parsed(source, f"reference.{key}")
    fn = reference.get("fn")
    if fn is not None and not isinstance(fn, str):
        raise DataError(f"reference.fn: expected a function's name, got {fn!r:.60}")
    return Asserts(tests, setup, function_name(fn) if fn else None, prompt)
