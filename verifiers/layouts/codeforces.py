"""Codeforces as open-r1 publishes it: `official_tests`, a checker, and the limits and language of the row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.verifiers.layouts._io_tests import objects, require_keys, stdin_test
from verizero.verifiers.layouts.base import Reference, Suite, text_of

VERIFIER = "code"
KEYS = ("official_tests",)
OTHERS = (
    "generated_checker", "time_limit", "memory_limit", "input_mode", "interaction_format", "id", "aliases",
    "contest_id", "contest_name", "contest_type", "contest_start", "contest_start_year", "index", "title",
    "description", "prompt", "input_format", "output_format", "note", "examples", "editorial", "tags", "rating",
    "testset_size", "generated_tests", "official_tests_complete", "executable",
)  # fmt: skip
ADAPTER = (Path(__file__).parents[1] / "in_sandbox" / "file_checker.py").read_text()
"""Defines check() for a checker that is a program with the names of three files."""


def read(reference: Reference) -> Suite:
    """Return the tests with their checker and limits. A problem that talks to a judge, or reads files, is refused."""
    if reference.get("interaction_format"):
        raise DataError("reference.interaction_format: the problem is interactive, and no judge can be run here")
    if (mode := reference.get("input_mode", "stdio")) != "stdio":
        raise DataError(f"reference.input_mode: programs read standard input here, got {mode!r:.40}")
    tests_of_row = objects(reference["official_tests"], "reference.official_tests")
    for number, test in enumerate(tests_of_row):
        require_keys(test, ("input", "output"), (), f"reference.official_tests[{number}]")
    tests = [stdin_test(t["input"], t["output"], f"reference.official_tests[{n}]") for n, t in enumerate(tests_of_row)]
    checker = None
    if reference.get("generated_checker"):
        source = text_of(reference["generated_checker"], "reference.generated_checker")
        checker = f"{ADAPTER}\nSOURCE = {source!r}\n"
    limits: dict[str, float] = {}
    for key, limit in (("time_limit", "cpu_s"), ("memory_limit", "memory_mib")):
        if key in reference:
            limits[limit] = _positive(reference[key], f"reference.{key}")
    return Suite("stdin", tuple(tests), checker=checker, limits=limits)


def _positive(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise DataError(f"{where}: expected a number above 0, got {value!r:.40}")
    return float(value)
