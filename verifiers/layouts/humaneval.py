"""HumanEval: `test` defines check(candidate), `entry_point` names the function, `prompt` is Python up to its body.

Imports and helpers of the prompt are there for the program and for the tests.
"""

from __future__ import annotations

from verizero.verifiers.layouts._sources import function_name, helpers_of, parsed
from verizero.verifiers.layouts.base import Asserts, Reference, text_of

VERIFIER = "unit_tests"
KEYS = ("entry_point", "test")
OTHERS = ("prompt", "canonical_solution", "task_id", "setup")


def read(reference: Reference) -> Asserts | None:
    """Return the tests; None if the function is a method."""
    if "." in str(reference["entry_point"]):
        return None
    return check_tests(reference)


def check_tests(reference: Reference) -> Asserts:
    """Return the tests of check(candidate)."""
    fn = function_name(reference["entry_point"])
    parsed(reference["test"], "reference.test")
    prompt = helpers_of(reference["prompt"], fn) if reference.get("prompt") else ""
    return Asserts(reference["test"], text_of(reference.get("setup", ""), "reference.setup"), fn, prompt)
