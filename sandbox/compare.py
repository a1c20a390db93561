"""Compare outputs and returned values to the expected ones, in the caller, on plain text and plain values."""

from __future__ import annotations

import math
import re
from typing import Any

from verizero.sandbox.worker.codec import Members, Pairs, by_key, key_text

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_FLOAT_SIGNS = re.compile(r"\.|[eE][+-]")
_RELATIVE, _ABSOLUTE = 1e-6, 1e-6
_VALUE_RELATIVE, _VALUE_ABSOLUTE = 1e-9, 1e-12
_KEY_BITS = 2_000
"""Bits of the largest integer key that has a text: Python refuses to write the decimal digits of much larger ones."""


def outputs_equal(got: str, expected: str) -> bool:
    """True if the outputs are equal line by line, without trailing whitespace, or else token by token.

    Tokens are compared as numbers only where the expected one is written as a float, with a point or a signed exponent
    (`12e4` may be a name): see `_tolerance`. NaN as a number equals nothing. Of `got`, which a program chose, no more
    lines and tokens are made than the expected output has.
    """
    got, expected = got.rstrip(), expected.rstrip()
    if got == expected:
        return True
    if got.count("\n") != expected.count("\n"):
        return False
    return all(map(_lines_equal, got.split("\n"), expected.split("\n")))


def _lines_equal(got: str, expected: str) -> bool:
    got, expected = got.rstrip(), expected.rstrip()
    if got == expected:
        return True
    wanted = expected.split()
    tokens = got.split(maxsplit=len(wanted))
    return len(tokens) == len(wanted) and all(map(_token_equal, tokens, wanted))


def _token_equal(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if not _FLOAT_SIGNS.search(expected):
        return False
    if len(got) > 400 or not _NUMBER.fullmatch(expected) or not _NUMBER.fullmatch(got):
        return False
    ours, wanted = float(got), float(expected)
    return math.isfinite(ours) and abs(ours - wanted) <= _tolerance(expected, abs(wanted)) * (1 + 1e-9)


def _tolerance(expected: str, size: float) -> float:
    """Return how far a number may be from an expected one of that size.

    1e-6 of its size, as judges of contests have it, but at most 1e-3, or 1e-9 of its size if that is more: no honest
    computation is further off. Where few decimals are shown, an answer that rounds to another text is another answer.
    Where at least four decimals and four digits are shown, one that agrees with all of them is right.
    """
    mantissa, _, exponent = expected.lower().partition("e")
    decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
    num_digits = len(re.sub(r"\D", "", mantissa).lstrip("0"))
    half_unit = 0.5 * 10.0 ** -max(-300, min(decimals, 300))
    relative = max(1e-9 * size, min(_RELATIVE * size, 1e-3))
    if decimals < 4:
        return min(max(relative, _ABSOLUTE), half_unit)
    return max(relative, half_unit if num_digits >= 4 else min(half_unit, _ABSOLUTE))


def values_equal(got: Any, expected: Any) -> bool:
    """True if the values are equal and of the same type; floats within 1e-9 relative, or 1e-12 near zero.

    A bool is no int, and NaN equals nothing. An integer may be as far from an expected float; a float equals an
    expected integer only exactly. An expected list matches a tuple, and expected string keys match integer keys, since
    JSON has neither. `got` must come from `codec.read`: then no `__eq__` of the program's own is ever called, and no
    value of it is hashed.
    """
    if got is None or expected is None:
        return got is expected
    if isinstance(got, bool) or isinstance(expected, bool):
        return isinstance(got, bool) and isinstance(expected, bool) and got == expected
    if isinstance(got, (int, float)) and isinstance(expected, (int, float)):
        return _numbers_equal(got, expected)
    if isinstance(got, complex) and isinstance(expected, (int, float, complex)):
        return _complex_equal(got, expected)
    if isinstance(got, (list, tuple)) and isinstance(expected, (list, tuple)):
        if isinstance(got, list) and isinstance(expected, tuple):
            return False
        return len(got) == len(expected) and all(map(values_equal, got, expected))
    if isinstance(got, (dict, Pairs)) and isinstance(expected, (dict, Pairs)):
        return len(got) == len(expected) and _pairs_equal(_pairs(got), _pairs(expected))
    if isinstance(got, (set, frozenset, Members)) and isinstance(expected, (set, frozenset, Members)):
        return len(got) == len(expected) and key_text(got) == key_text(expected)
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


def _complex_equal(got: complex, expected: complex) -> bool:
    try:
        expected = complex(expected)
    except OverflowError:  # an integer beyond every float
        return False
    return _numbers_equal(got.real, expected.real) and _numbers_equal(got.imag, expected.imag)


def _pairs(value: dict[Any, Any] | Pairs) -> list[tuple[Any, Any]]:
    return list(value.items() if isinstance(value, dict) else value)


def _pairs_equal(got: list[tuple[Any, Any]], expected: list[tuple[Any, Any]]) -> bool:
    if all(isinstance(k, str) for k, _ in expected) and not all(isinstance(k, str) for k, _ in got):
        got = [(str(k) if type(k) is int and k.bit_length() <= _KEY_BITS else k, v) for k, v in got]
        if not all(isinstance(k, str) for k, _ in got):
            return False
    ours, wanted = by_key(got), by_key(expected)
    return all(a == b and values_equal(v, w) for (a, v), (b, w) in zip(ours, wanted, strict=True))
