"""References of tests of contests: LiveCodeBench, CodeContests, and Codeforces as open-r1 publishes it.

LiveCodeBench's tests have a `testtype`, in its two columns or in a list; inputs of functions have one JSON value a
line, and outputs are JSON. The column of private tests may be packed: JSON in a pickle of a text, in zlib, in base64.
Nothing is unpickled.
"""

from __future__ import annotations

import base64
import pickletools
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.pipeline.host.disk import parse_json
from verizero.verifiers.layouts.base import Layout, Reference, Suite, Test, positive, text_of
from verizero.verifiers.layouts.in_and_out import call_test, json_lines, objects, require_keys, stdin_test

MAX_UNPACKED = 1 << 28
"""Bytes of unpacked private tests, above which a row is refused."""
PARTS = ("public_tests", "private_tests", "generated_tests")
ADAPTER = (Path(__file__).parents[1] / "in_sandbox" / "file_checker.py").read_text()
"""Defines check() for a checker that is a program with the names of three files."""
_OF_A_TEXT = frozenset(("PROTO", "FRAME", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "MEMOIZE", "PUT",
                       "BINPUT", "LONG_BINPUT", "STOP"))  # fmt: skip
"""Operations in the pickle of a text. None of them runs: an unpickler takes any memory that one asks for."""


def _livecodebench(reference: Reference) -> Suite:
    """Return the public and the private tests."""
    fn = reference.get("fn_name") or _func_name(reference.get("metadata"))
    tests = [*objects(reference["public_test_cases"], "reference.public_test_cases")]
    if reference.get("private_test_cases"):
        tests += objects(_unpacked(reference["private_test_cases"]), "reference.private_test_cases")
    return _with_types(tests, fn)


def _with_types(tests: list[Mapping[str, Any]], fn: Any) -> Suite:
    """Return tests that say their `testtype`. `fn`: the function that they call, unless their metadata name it."""
    made = [_test(test, fn, f"reference test {i}") for i, test in enumerate(tests)]
    if len({"fn" in test for test in made}) > 1:
        raise DataError("reference: tests of both testtypes; split the row in two")
    return Suite("function" if made and "fn" in made[0] else "stdin", tuple(made))


def _func_name(metadata: Any) -> Any:
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
    fn = _func_name(test.get("metadata")) or fn
    if not fn:
        raise DataError(
            f"{where} is of a function, and none is named; map the column 'metadata' too, or give 'fn_name'"
        )
    (expected,) = json_lines(str(test["output"]), f"{where}.output") or (None,)
    return call_test(fn, json_lines(str(test["input"]), f"{where}.input"), expected, where)


def _livecodebench_tests(reference: Reference) -> Suite | None:
    """Return the tests; None if none says its testtype."""
    tests = reference["tests"]
    if not isinstance(tests, list) or not any(isinstance(t, Mapping) and "testtype" in t for t in tests):
        return None
    return _with_types(tests, reference.get("fn") or reference.get("fn_name") or _func_name(reference.get("metadata")))


def _text_in(pickled: bytes) -> str:
    """Return the text of which these bytes are the pickle. Raises: ValueError for any other pickle."""
    texts = []
    for operation, argument, _ in pickletools.genops(pickled):
        if operation.name not in _OF_A_TEXT:
            raise ValueError(f"a pickle of something else than a text, with {operation.name}")
        texts += [argument] if isinstance(argument, str) else []
    if len(texts) != 1:
        raise ValueError(f"a pickle of {len(texts)} texts in place of one")
    return str(texts[0])


def _unpacked(column: Any) -> Any:
    if not isinstance(column, str) or column.lstrip()[:1] == "[":
        return column
    try:
        unzip = zlib.decompressobj()
        packed = unzip.decompress(base64.b64decode(column, validate=True), MAX_UNPACKED)
        if unzip.unconsumed_tail:
            raise DataError(f"reference.private_test_cases: more than {MAX_UNPACKED >> 20} MiB of tests")
        return _text_in(packed)
    except (ValueError, zlib.error) as exc:
        raise DataError(f"reference.private_test_cases: cannot be unpacked ({exc}), got {column!r:.40}") from exc


def _code_contests(reference: Reference) -> Suite:
    """Return all tests, in the order of their columns, and the row's limits. Tasks of files are refused."""
    if files := [reference[key] for key in ("input_file", "output_file") if reference.get(key)]:
        raise DataError(f"reference: its programs read or write the file {files[0]!r:.40}, and here only streams")
    tests = [test for part in PARTS if part in reference for test in _tests_of(reference[part], f"reference.{part}")]
    limits: dict[str, float] = {}
    time = reference.get("time_limit")
    if isinstance(time, Mapping) and (seconds := (time.get("seconds") or 0) + (time.get("nanos") or 0) / 1e9) > 0:
        limits["cpu_s"] = seconds
    if memory := reference.get("memory_limit_bytes"):
        limits["memory_mib"] = max(1, int(memory) >> 20)
    return Suite("stdin", tuple(tests), limits=limits)


def _tests_of(part: Any, where: str) -> list[Test]:
    if not isinstance(part, Mapping) or not {"input", "output"} == set(part):
        raise DataError(f"{where}: expected an object with the lists 'input' and 'output', got {part!r:.60}")
    inputs, outputs = part["input"], part["output"]
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise DataError(f"{where}.input and {where}.output: expected two lists of equal length")
    return [stdin_test(i, o, f"{where}[{n}]") for n, (i, o) in enumerate(zip(inputs, outputs, strict=True))]


def _codeforces(reference: Reference) -> Suite:
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
            limits[limit] = positive(reference[key], f"reference.{key}")
    return Suite("stdin", tuple(tests), checker=checker, limits=limits)


# fmt: off
LAYOUTS = {
    "livecodebench": Layout(
        "code", ("public_test_cases",),
        ("private_test_cases", "metadata", "starter_code", "fn_name", "question_title", "question_content", "platform",
        "question_id", "contest_id", "contest_date", "difficulty"), _livecodebench,
    ),
    "livecodebench_tests": Layout("code", ("tests",), ("fn", "fn_name", "metadata"), _livecodebench_tests),
    "code_contests": Layout(
        "code", ("public_tests",),
        (*PARTS[1:], "time_limit", "memory_limit_bytes", "input_file", "output_file", "name", "description", "source",
        "difficulty", "solutions", "incorrect_solutions", "cf_contest_id", "cf_index", "cf_points", "cf_rating",
        "cf_tags", "is_description_translated", "untranslated_description"), _code_contests,
    ),
    "codeforces": Layout(
        "code", ("official_tests",),
        ("generated_checker", "time_limit", "memory_limit", "input_mode", "interaction_format", "id", "aliases",
        "contest_id", "contest_name", "contest_type", "contest_start", "contest_start_year", "index", "title",
        "description", "prompt", "input_format", "output_format", "note", "examples", "editorial", "tags", "rating",
        "testset_size", "generated_tests", "official_tests_complete", "executable"), _codeforces,
    ),
}
# fmt: on
