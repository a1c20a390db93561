"""APPS, TACO, Eurus and verl's `prime_code`: {"inputs", "outputs", "fn_name"?}, also in a column `input_output`.

With `fn_name` an input is a list of arguments, or a text with one JSON value a line as in LiveCodeBench; then the
output may be JSON too. APPS wraps expected values in lists of one, and not always.
"""

from __future__ import annotations

from typing import Any

from verizero.pipeline.errors import DataError
from verizero.verifiers.layouts._io_tests import call_test, json_lines, json_or_text, stdin_test
from verizero.verifiers.layouts.base import Reference, Suite

VERIFIER = "code"
KEYS = ("inputs", "outputs")
OTHERS = ("fn_name", "fn")


def read(reference: Reference) -> Suite:
    """Return the tests."""
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
    other = [_other(argument, output) for argument, output in pairs]
    if not as_given or not all(is_other for is_other, _ in other):
        return Suite("function", as_given)
    return Suite(
        "function", tuple({**t, "expected": v} for t, (_, v) in zip(as_given, other, strict=True)), alternative=as_given
    )


def _arguments(argument: Any, where: str) -> list[Any]:
    if isinstance(argument, str):
        return json_lines(argument, where)
    return argument if isinstance(argument, list) else [argument]


def _other(argument: Any, output: Any) -> tuple[bool, Any]:
    """Return whether the output has a likelier reading than its own, and that reading."""
    if isinstance(argument, str) and isinstance(output, str):
        return True, json_or_text(output)
    return isinstance(output, list) and len(output) == 1, output[0] if isinstance(output, list) and output else output
