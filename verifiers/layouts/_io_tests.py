"""Tests of inputs and outputs as data sets write them: texts of streams, and arguments as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.pipeline.files import json_text, parse_json
from verizero.verifiers.layouts.base import Test

MAX_SHOWN = 60


def stdin_test(text: Any, output: Any, where: str) -> Test:
    """Return a test of a whole program: the text that it reads, and the text that it must print.

    A list holds lines. Raises: DataError for what is no text, as null is.
    """
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


def json_or_text(text: str) -> Any:
    """Return the value of a JSON text; any other text as it is."""
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return text


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
