"""Compare outputs and returned values to the expected ones, in the caller, on plain text and plain values."""

from __future__ import annotations

import math
import re
from typing import Any

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_RELATIVE, _ABSOLUTE = 1e-6, 1e-6
_VALUE_RELATIVE, _VALUE_ABSOLUTE = 1e-9, 1e-12


def outputs_equal(got: str, expected: str) -> bool:
    """True if the outputs are equal line by line, without trailing whitespace, or else token by token.

    Tokens are compared as numbers only where the expected one is a decimal fraction: within 1e-6 relative, or 1e-6
    absolute but never more than half a unit of the last place shown. NaN as a number equals nothing.
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
    """True if the values are equal and of the same type; floats within 1e-9 relative, or 1e-12 near zero.

    A bool is no int, and NaN equals nothing. An integer may be as far from an expected float; a float equals an
    expected integer only exactly. An expected list matches a tuple, and expected string keys match integer keys, since
    JSON has neither. `got` must come from `codec.decode`: then no `__eq__` of the program's own is ever called.
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
    # An integer beyond 1e300 may have no float to compare it with.
    if isinstance(expected, float) and (isinstance(got, float) or abs(got) < 1e300):
        return math.isclose(got, expected, rel_tol=_VALUE_RELATIVE, abs_tol=_VALUE_ABSOLUTE)
    return bool(got == expected)


def _keyed(value: Any) -> str:
    """Return a text in which 1, 1.0 and True differ."""
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
