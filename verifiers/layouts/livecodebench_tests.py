"""A list of LiveCodeBench's tests, as DeepCoder and others store it: [{"input", "output", "testtype", "metadata"?}]."""

from __future__ import annotations

from collections.abc import Mapping

from verizero.verifiers.layouts.base import Reference, Suite
from verizero.verifiers.layouts.livecodebench import func_name, suite

VERIFIER = "code"
KEYS = ("tests",)
OTHERS = ("fn", "fn_name", "metadata")


def read(reference: Reference) -> Suite | None:
    """Return the tests; None if none says its testtype."""
    tests = reference["tests"]
    if not isinstance(tests, list) or not any(isinstance(t, Mapping) and "testtype" in t for t in tests):
        return None
    return suite(tests, reference.get("fn") or reference.get("fn_name") or func_name(reference.get("metadata")))
