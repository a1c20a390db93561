"""LiveCodeBench: tests with a `testtype`, in its two columns or in a list; of functions with `metadata.func_name`.

Inputs of functions have one JSON value a line, and outputs are JSON. The column of private tests may be packed: JSON in
a pickle in zlib in base64, of which nothing but a text is unpickled.
"""

from __future__ import annotations

import base64
import io
import pickle
import zlib
from collections.abc import Mapping
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.pipeline.files import parse_json
from verizero.verifiers.layouts._io_tests import call_test, json_lines, objects, require_keys, stdin_test
from verizero.verifiers.layouts.base import Reference, Suite, Test

VERIFIER = "code"
KEYS = ("public_test_cases",)
OTHERS = (
    "private_test_cases", "metadata", "starter_code", "fn_name", "question_title", "question_content", "platform",
    "question_id", "contest_id", "contest_date", "difficulty",
)  # fmt: skip
MAX_UNPACKED = 1 << 28
"""Bytes of unpacked private tests, above which a row is refused."""


def read(reference: Reference) -> Suite:
    """Return the public and the private tests."""
    fn = reference.get("fn_name") or func_name(reference.get("metadata"))
    tests = [*objects(reference["public_test_cases"], "reference.public_test_cases")]
    if reference.get("private_test_cases"):
        tests += objects(_unpacked(reference["private_test_cases"]), "reference.private_test_cases")
    return suite(tests, fn)


def suite(tests: list[Mapping[str, Any]], fn: Any) -> Suite:
    """Return tests that say their `testtype`. `fn`: the function that they call, unless their metadata name it."""
    made = [_test(test, fn, f"reference test {i}") for i, test in enumerate(tests)]
    if len({"fn" in test for test in made}) > 1:
        raise DataError("reference: tests of both testtypes; split the row in two")
    return Suite("function" if made and "fn" in made[0] else "stdin", tuple(made))


def func_name(metadata: Any) -> Any:
    """Return the function that the column `metadata` names, which may be JSON text."""
    if isinstance(metadata, str):
        try:
            metadata = parse_json(metadata)
        except ValueError as exc:
            raise DataError(f"reference.metadata: not JSON ({exc}), got {metadata!r:.60}") from exc
    return metadata.get("func_name") if isinstance(metadata, Mapping) else None


def _test(test: Mapping[str, Any], fn: Any, where: str) -> Test:
    require_keys(test, ("input", "output"), ("testtype", "metadata"), where)
    if test.get("testtype", "stdin") == "stdin":
        return stdin_test(test["input"], test["output"], where)
    if test["testtype"] != "functional":
        raise DataError(f"{where}: testtype must be 'stdin' or 'functional', got {test['testtype']!r:.40}")
    fn = func_name(test.get("metadata")) or fn
    if not fn:
        raise DataError(
            f"{where} is of a function, and none is named; map the column 'metadata' too, or give 'fn_name'"
        )
    (expected,) = json_lines(str(test["output"]), f"{where}.output") or (None,)
    return call_test(fn, json_lines(str(test["input"]), f"{where}.input"), expected, where)


class _TextOnly(pickle.Unpickler):
    """Loads texts and numbers, and no object."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds an object of {module}.{name}")


def _unpacked(column: Any) -> Any:
    if not isinstance(column, str) or column.lstrip()[:1] == "[":
        return column
    try:
        unzip = zlib.decompressobj()
        packed = unzip.decompress(base64.b64decode(column, validate=True), MAX_UNPACKED)
        if unzip.unconsumed_tail:
            raise DataError(f"reference.private_test_cases: more than {MAX_UNPACKED >> 20} MiB of tests")
        return _TextOnly(io.BytesIO(packed)).load()
    except (ValueError, EOFError, zlib.error, pickle.UnpicklingError) as exc:
        raise DataError(f"reference.private_test_cases: cannot be unpacked ({exc}), got {column!r:.40}") from exc
