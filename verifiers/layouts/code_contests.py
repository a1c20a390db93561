"""CodeContests: `public_tests`, `private_tests` and `generated_tests`, each {"input": [..], "output": [..]}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.verifiers.layouts._io_tests import stdin_test
from verizero.verifiers.layouts.base import Reference, Suite, Test

VERIFIER = "code"
KEYS = ("public_tests",)
PARTS = ("public_tests", "private_tests", "generated_tests")
OTHERS = (
    *PARTS[1:], "time_limit", "memory_limit_bytes", "input_file", "output_file", "name", "description", "source",
    "difficulty", "solutions", "incorrect_solutions", "cf_contest_id", "cf_index", "cf_points", "cf_rating", "cf_tags",
    "is_description_translated", "untranslated_description",
)  # fmt: skip


def read(reference: Reference) -> Suite:
    """Return all tests, in the order of their columns, and the row's limits. Tasks of files are refused."""
    if files := [reference[key] for key in ("input_file", "output_file") if reference.get(key)]:
        raise DataError(f"reference: its programs read or write the file {files[0]!r:.40}, and here only streams")
    tests = [test for part in PARTS if part in reference for test in _tests(reference[part], f"reference.{part}")]
    limits: dict[str, float] = {}
    time = reference.get("time_limit")
    if isinstance(time, Mapping) and (seconds := (time.get("seconds") or 0) + (time.get("nanos") or 0) / 1e9) > 0:
        limits["cpu_s"] = seconds
    if memory := reference.get("memory_limit_bytes"):
        limits["memory_mib"] = max(1, int(memory) >> 20)
    return Suite("stdin", tuple(tests), limits=limits)


def _tests(part: Any, where: str) -> list[Test]:
    if not isinstance(part, Mapping) or not {"input", "output"} == set(part):
        raise DataError(f"{where}: expected an object with the lists 'input' and 'output', got {part!r:.60}")
    inputs, outputs = part["input"], part["output"]
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise DataError(f"{where}.input and {where}.output: expected two lists of equal length")
    return [stdin_test(i, o, f"{where}[{n}]") for n, (i, o) in enumerate(zip(inputs, outputs, strict=True))]
