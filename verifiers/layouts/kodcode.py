"""KodCode: a file of pytest, which may begin with `from solution import f`."""

from __future__ import annotations

from verizero.verifiers.layouts._sources import parsed
from verizero.verifiers.layouts.base import Asserts, Reference, text_of

VERIFIER = "unit_tests"
KEYS = ("test",)
OTHERS = ("solution", "setup")


def read(reference: Reference) -> Asserts:
    """Return the tests."""
    parsed(reference["test"], "reference.test")
    return Asserts(reference["test"], text_of(reference.get("setup", ""), "reference.setup"))
