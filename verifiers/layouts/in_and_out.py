"""References of tests of inputs and outputs: our own form, and those of APPS, verl and SYNTHETIC."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.pipeline.host.disk import json_text, parse_json
from verizero.verifiers.layouts.base import Layout, Reference, Suite, Test, json_or_text, language_of, layout_of

TYPED = ("testtype", "type")
"""Keys of tests of other layouts."""


def stdin_test(text: Any, output: Any, where: str) -> Test:
    """Return a test of a whole program: texts read and printed; a list is of lines. Raises: DataError."""
    return {"input": _stream(text, f"{where}.input"), "output": _stream(output, f"{where}.output")}


def _stream(value: Any, where: str) -> str:
    if isinstance(value, list) and value and not any(isinstance(v, list | dict | bool | None) for v in value):
        return "\n".join(map(_text, value))
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return _text(value)
    raise DataError(f"{where}: expected a text, or a list of lines, got {value!r:.60}")


def _text(value: str | int | float) -> str:
    return json_text(value) if isinstance(value, int) else str(value)  # Python writes no more than 4,300 digits


def call_test(fn: Any, args: Any, expected: Any, where: str, kwargs: Any = None) -> Test:
    """Return a test of a function: its name, its arguments, and the value that it must return. Raises: DataError."""
    if not isinstance(fn, str) or not fn:
        raise DataError(f"{where}: no function is named; give 'fn' (or the data's own 'fn_name'), got {fn!r:.60}")
    if not isinstance(args, list):
        raise DataError(f"{where}: the arguments must be a list, got {args!r:.60}")
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(k, str) for k in kwargs)):
        raise DataError(f"{where}: 'kwargs' must be an object, got {kwargs!r:.60}")
    test: Test = {"fn": fn.removesuffix("()").rpartition(".")[2], "args": args, "expected": expected}
    return test if kwargs is None else {**test, "kwargs": dict(kwargs)}


def json_lines(text: str, where: str) -> list[Any]:
    """Return the values of a text with one JSON value a line. Raises: DataError."""
    try:
        return [parse_json(line) for line in text.split("\n") if line.strip()]
    except (ValueError, RecursionError) as exc:
        raise DataError(f"{where}: the arguments must be JSON, one a line ({exc}), got {text!r:.60}") from exc


def objects(value: Any, where: str) -> list[Mapping[str, Any]]:
    """Return a list of objects, which may be a JSON text. Raises: DataError."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except (ValueError, RecursionError) as exc:
            raise DataError(f"{where}: not JSON ({exc}), got {value!r:.60}") from exc
    if not isinstance(value, list) or not all(isinstance(v, Mapping) for v in value):
        raise DataError(f"{where}: expected a list of objects, got {value!r:.80}")
    return value


def require_keys(test: Mapping[str, Any], needed: tuple[str, ...], others: tuple[str, ...], where: str) -> None:
    """Raise DataError unless the test has all needed keys, and none but those and `others`."""
    missing, unknown = [k for k in needed if k not in test], [k for k in test if k not in (*needed, *others)]
    if missing or unknown:
        raise DataError(
            f"{where}: expected the keys {', '.join(needed)}" + (f" ({', '.join(others)})" if others else "")
            + f"; got {', '.join(sorted(map(str, test))) or 'none'}"
        )  # fmt: skip


def _own_tests(reference: Reference) -> Suite | None:
    """Return tests of ours, {"args", "expected"} or {"input", "output"}; None if they are source, or say their type."""
    tests = reference["tests"]
    if not isinstance(tests, list) or any(
        isinstance(t, str) or (isinstance(t, Mapping) and t.keys() & TYPED) for t in tests
    ):
        return None
    fn = reference.get("fn") or reference.get("fn_name")
    made = [_own_test(test, fn, f"reference.tests[{i}]") for i, test in enumerate(tests)]
    if len({"fn" in test for test in made}) > 1:
        raise DataError("reference.tests: stdin tests and function tests are mixed; split the row in two")
    if fn and made and "fn" not in made[0]:
        raise DataError(f"reference.fn is {fn!r}, and the tests have 'input' and 'output'; give 'args' and 'expected'")
    return Suite("function" if made and "fn" in made[0] else "stdin", tuple(made))


def _own_test(test: Any, fn: Any, where: str) -> Test:
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


def _apps(reference: Reference) -> Suite:
    """Return the tests of two lists. With `fn_name` an input is a list of arguments, or has one JSON value a line.

    The output may then be JSON too. APPS wraps expected values in lists of one, and not always.
    """
    inputs, outputs = reference["inputs"], reference["outputs"]
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise DataError("reference.inputs and reference.outputs: expected two lists of equal length")
    fn = reference.get("fn_name") or reference.get("fn")
    pairs = list(zip(inputs, outputs, strict=True))
    if not fn:
        return Suite("stdin", tuple(stdin_test(i, o, f"reference test {n}") for n, (i, o) in enumerate(pairs)))
    calls = [_arguments(argument, f"reference.inputs[{n}]") for n, argument in enumerate(inputs)]
    as_given = tuple(
        call_test(fn, a, o, f"reference test {n}") for n, (a, o) in enumerate(zip(calls, outputs, strict=True))
    )
    other = [_likelier(argument, output) for argument, output in pairs]
    if not as_given or not all(is_other for is_other, _ in other):
        return Suite("function", as_given)
    return Suite(
        "function", tuple({**t, "expected": v} for t, (_, v) in zip(as_given, other, strict=True)), alternative=as_given
    )


def _arguments(argument: Any, where: str) -> list[Any]:
    if isinstance(argument, str):
        return json_lines(argument, where)
    return argument if isinstance(argument, list) else [argument]


def _likelier(argument: Any, output: Any) -> tuple[bool, Any]:
    """Return whether the output has a likelier reading than its own, and that reading."""
    if isinstance(argument, str) and isinstance(output, str):
        return True, json_or_text(output)
    return isinstance(output, list) and len(output) == 1, output[0] if isinstance(output, list) and output else output


def _typed_tests(tests: Any, fn: Any = None) -> Suite | None:
    """Return the tests of a list; None if none of them says its type."""
    if not isinstance(tests, list) or not any(isinstance(t, Mapping) and "type" in t for t in tests):
        return None
    made = [_typed_test(test, fn, f"reference test {i}") for i, test in enumerate(tests)]
    if len({"fn" in test for test in made}) > 1:
        raise DataError("reference: tests of both types; split the row in two")
    if "fn" not in made[0]:
        return Suite("stdin", tuple(made))
    if not all(isinstance(t["expected"], list) and len(t["expected"]) == 1 for t in made):
        return Suite("function", tuple(made))
    return Suite("function", tuple({**t, "expected": t["expected"][0]} for t in made), alternative=tuple(made))


def _typed_test(test: Mapping[str, Any], fn: Any, where: str) -> Test:
    require_keys(test, ("type", "input", "output"), ("fn_name",), where)
    if test["type"] == "stdin_stdout":
        return stdin_test(test["input"], test["output"], where)
    if test["type"] != "function_call":
        raise DataError(f"{where}: type must be 'function_call' or 'stdin_stdout', got {test['type']!r:.40}")
    return call_test(test.get("fn_name") or fn, test["input"], test["output"], where)


def _verification_info(reference: Reference) -> Suite:
    """Return the tests of the column, which is JSON or as Python writes it."""
    info = _info(reference["verification_info"])
    tests = _typed_tests(info.get("test_cases"))
    if tests is None or info.keys() - {"test_cases", "language", "ground_truth"}:
        raise DataError(
            f"reference.verification_info: expected 'test_cases' and 'language', got {str(dict(info))[:60]}"
        )
    if "language" not in info:
        return tests
    return Suite(tests.mode, tests.tests, tests.alternative, language=language_of(info["language"]))


def _info(info: Any) -> Mapping[str, Any]:
    if isinstance(info, str):
        try:
            info = parse_json(info)
        except (ValueError, RecursionError):
            try:
                info = ast.literal_eval(info)
            except (ValueError, SyntaxError, RecursionError, MemoryError) as exc:
                raise DataError(f"reference.verification_info: neither JSON nor Python ({exc})") from exc
    if not isinstance(info, Mapping):
        raise DataError(f"reference.verification_info: expected an object, got {info!r:.60}")
    return info


# fmt: off
LAYOUTS = {
    "tests": Layout("code", ("tests",), ("fn", "fn_name"), _own_tests),
    "synthetic": Layout("code", ("tests",), ("fn_name",), lambda row: _typed_tests(row["tests"], row.get("fn_name"))),
    "verification_info": Layout(
        "code", ("verification_info",),
        ("source", "task_type", "in_source_id", "problem_id", "prompt", "gold_standard_solution", "metadata"),
        _verification_info,
    ),
    "apps": Layout("code", ("inputs", "outputs"), ("fn_name", "fn"), _apps),
    # The columns of APPS and of verl hold tests in any layout, as JSON text.
    "input_output": Layout(
        "code", ("input_output",),
        ("problem_id", "question", "solutions", "starter_code", "difficulty", "url", "tags", "raw_tags", "source",
        "name", "picture_num", "skill_types", "Expected Time Complexity", "Expected Auxiliary Space", "time_limit",
        "memory_limit", "date"), lambda row: layout_of(row["input_output"])[1],
    ),
    "ground_truth": Layout("code", ("ground_truth",), ("style",), lambda row: layout_of(row["ground_truth"])[1]),
}
# fmt: on
