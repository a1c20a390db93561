"""Whether an output, or a returned value, is the expected one. Runs in the judge, on plain bytes and plain values."""

from __future__ import annotations

import math
import re
from typing import Any

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_RELATIVE, _ABSOLUTE = 1e-6, 1e-6
_VALUE_RELATIVE, _VALUE_ABSOLUTE = 1e-9, 1e-12


def outputs_equal(got: str, expected: str) -> bool:
    """Equal by lines, without trailing whitespace; else by tokens, where decimal fractions may differ a little.

    A token is compared as a number only where the expected one is a decimal fraction: within 1e-6 of it, relative, or
    absolute to 1e-6 and never more than half a unit of the last place shown. NaN equals nothing.
    """
    ours, wanted = _lines(got), _lines(expected)
    if ours == wanted:
        return True
    if len(ours) != len(wanted):
        return False
    return all(a == b or _tokens_equal(a.split(), b.split()) for a, b in zip(ours, wanted, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _tokens_equal(got: list[str], expected: list[str]) -> bool:
    return len(got) == len(expected) and all(_token_equal(a, b) for a, b in zip(got, expected, strict=True))


def _token_equal(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if "." not in expected and "e" not in expected.lower():
        return False
    if len(got) > 400 or not _NUMBER.fullmatch(expected) or not _NUMBER.fullmatch(got):
        return False
    mantissa, _, exponent = expected.lower().partition("e")
    shown = len(mantissa.partition(".")[2]) - int(exponent or 0)
    absolute = min(_ABSOLUTE, 0.5 * 10.0 ** -min(shown, 300)) if shown > 0 else _ABSOLUTE
    ours, wanted = float(got), float(expected)
    return math.isfinite(ours) and math.isclose(ours, wanted, rel_tol=_RELATIVE, abs_tol=absolute)


def values_equal(got: Any, expected: Any) -> bool:
    """Equal with types: bool is no int, NaN nothing, str no bytes; floats within 1e-9 relative (1e-12 near zero).

    An integer and a float are equal when exactly so. A list may be expected where a tuple came, and string keys where
    integer keys came, since expectations that were stored as JSON know neither tuples nor integer keys. Asks nothing
    of the objects themselves: `got` must come from `codec.decode`.
    """
    if got is None or expected is None:
        return got is expected
    if isinstance(got, bool) or isinstance(expected, bool):
        return isinstance(got, bool) and isinstance(expected, bool) and got == expected
    if isinstance(got, (int, float)) and isinstance(expected, (int, float)):
        return _numbers_equal(got, expected)
    if isinstance(got, complex) and isinstance(expected, (int, float, complex)):
        expected = complex(expected)
        return _numbers_equal(got.real, expected.real) and _numbers_equal(got.imag, expected.imag)
    if isinstance(got, (list, tuple)) and isinstance(expected, (list, tuple)):
        if isinstance(got, list) and isinstance(expected, tuple):
            return False
        return len(got) == len(expected) and all(values_equal(a, b) for a, b in zip(got, expected, strict=True))
    if isinstance(got, dict) and isinstance(expected, dict):
        return _dicts_equal(got, expected)
    if isinstance(got, (set, frozenset)) and isinstance(expected, (set, frozenset)):
        return len(got) == len(expected) and sorted(map(_keyed, got)) == sorted(map(_keyed, expected))
    if isinstance(got, range) and isinstance(expected, range):
        return got == expected
    for kind in (str, bytes):
        if isinstance(got, kind) or isinstance(expected, kind):
            return isinstance(got, kind) and isinstance(expected, kind) and got == expected
    return False


def _numbers_equal(got: Any, expected: Any) -> bool:
    if isinstance(got, int) and isinstance(expected, int):
        return got == expected
    if isinstance(got, float) and isinstance(expected, float):
        return math.isclose(got, expected, rel_tol=_VALUE_RELATIVE, abs_tol=_VALUE_ABSOLUTE)
    if isinstance(expected, float) and abs(got) < 1e300:
        return math.isclose(got, expected, rel_tol=_VALUE_RELATIVE, abs_tol=_VALUE_ABSOLUTE)
    return bool(got == expected)


def _keyed(value: Any) -> str:
    """A form in which 1, 1.0 and True differ."""
    if isinstance(value, (tuple, list)):
        return f"({','.join(map(_keyed, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{','.join(sorted(map(_keyed, value)))}}}"
    return f"{type(value).__name__}:{value!r}"


def _dicts_equal(got: dict[Any, Any], expected: dict[Any, Any]) -> bool:
    if len(got) != len(expected):
        return False
    ours = {_keyed(k): v for k, v in got.items()}
    from_json = all(isinstance(k, str) for k in expected)
    if from_json and not all(isinstance(k, str) for k in got):
        if not all(type(k) is int or isinstance(k, str) for k in got):
            return False
        ours = {_keyed(str(k)): v for k, v in got.items()}
    missing = object()
    return all(values_equal(ours.get(_keyed(k), missing), v) for k, v in expected.items())
