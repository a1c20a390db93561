"""verl's column `reward_model`: {"ground_truth": tests, "style"}, whose tests are JSON text in any layout."""

from __future__ import annotations

from verizero.verifiers.layouts.base import Reference, Tests, layout_of

VERIFIER = "code"
KEYS = ("ground_truth",)
OTHERS = ("style",)


def read(reference: Reference) -> Tests:
    """Return the tests in the column."""
    return layout_of(reference["ground_truth"])[1]
