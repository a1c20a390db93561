"""Elementary functions of real intervals, with bounds rounded outwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpmath import libmp

from verizero.verifiers.mathematics.decide.exact import TooBig, Undefined

Mpi = Any
"""A pair of lower and upper bound, each a raw big float."""
MAX_EXPONENT_BITS = 40
ONE = (libmp.fone, libmp.fone)


def is_zero_inside(value: Mpi) -> bool:
    """True if zero lies within the bounds."""
    return bool(libmp.mpf_sign(value[0]) <= 0 <= libmp.mpf_sign(value[1]))


def magnitude(value: Mpi) -> int:
    """Return log2 of the greatest absolute value within the bounds, rounded up; very small for zero."""
    # A raw float is (sign, mantissa, exponent, bits of the mantissa).
    return max((int(x[2] + x[3]) for x in value if x[1]), default=-(10**9))


def half_turn(precision: int) -> Mpi:
    """Return bounds of pi."""
    return (libmp.mpf_pi(precision, "f"), libmp.mpf_pi(precision, "c"))


def _reciprocal(value: Mpi, precision: int) -> Mpi:
    if is_zero_inside(value):
        raise Undefined
    return libmp.mpi_div(ONE, value, precision)


def _clamped(bound: Any) -> Any:
    """Return the bound, moved into [-1, 1] if it is out by a rounding.

    Raises: Undefined if it is out by more.
    """
    for limit in (libmp.fone, libmp.mpf_neg(libmp.fone)):
        beyond = libmp.mpf_sub(bound, limit, 53, "n") if limit == libmp.fone else libmp.mpf_sub(limit, bound, 53, "n")
        if libmp.mpf_sign(beyond) > 0:
            if beyond[2] + beyond[3] > -100:
                raise Undefined
            return limit
    return bound


def _arcsine(value: Mpi, precision: int) -> Mpi:
    low, high = _clamped(value[0]), _clamped(value[1])
    return (libmp.mpf_asin(low, precision, "f"), libmp.mpf_asin(high, precision, "c"))


def _arccosine(value: Mpi, precision: int) -> Mpi:
    low, high = _clamped(value[0]), _clamped(value[1])  # the function falls, so that the bounds change places
    return (libmp.mpf_acos(high, precision, "f"), libmp.mpf_acos(low, precision, "c"))


def _arccotangent(value: Mpi, precision: int) -> Mpi:
    right = libmp.mpi_div(half_turn(precision), (libmp.from_int(2), libmp.from_int(2)), precision)
    return libmp.mpi_sub(right, libmp.mpi_atan(value, precision), precision)


def _hyperbolic(value: Mpi, precision: int, sign: int) -> Mpi:
    if magnitude(value) > MAX_EXPONENT_BITS:
        raise TooBig
    up, down = libmp.mpi_exp(value, precision), libmp.mpi_exp(libmp.mpi_neg(value), precision)
    total = libmp.mpi_add(up, down, precision) if sign > 0 else libmp.mpi_sub(up, down, precision)
    return libmp.mpi_div(total, (libmp.from_int(2), libmp.from_int(2)), precision)


def _hyperbolic_tangent(value: Mpi, precision: int) -> Mpi:
    return libmp.mpi_div(_hyperbolic(value, precision, -1), _hyperbolic(value, precision, 1), precision)


def _inverse_hyperbolic(value: Mpi, precision: int, sign: int) -> Mpi:
    """Return ln(x + sqrt(x^2 + sign)), which is arsinh (+1) or arcosh (-1)."""
    square = libmp.mpi_pow_int(value, 2, precision)
    inside = libmp.mpi_add(square, (libmp.from_int(sign), libmp.from_int(sign)), precision)
    if libmp.mpf_sign(inside[0]) < 0:
        raise Undefined
    return libmp.mpi_log(libmp.mpi_add(value, libmp.mpi_sqrt(inside, precision), precision), precision)


def _sign(value: Mpi, precision: int) -> Mpi:
    low, high = libmp.mpf_sign(value[0]), libmp.mpf_sign(value[1])
    if low != high:  # too wide to tell; a zero has both bounds zero
        raise Undefined
    return (libmp.from_int(low), libmp.from_int(high))


FUNCTIONS: dict[str, Callable[[Mpi, int], Mpi]] = {
    "sin": libmp.mpi_sin,
    "cos": libmp.mpi_cos,
    "tan": libmp.mpi_tan,
    "cot": lambda x, p: libmp.mpi_div(libmp.mpi_cos(x, p), libmp.mpi_sin(x, p), p),
    "sec": lambda x, p: _reciprocal(libmp.mpi_cos(x, p), p),
    "csc": lambda x, p: _reciprocal(libmp.mpi_sin(x, p), p),
    "asin": _arcsine,
    "acos": _arccosine,
    "atan": libmp.mpi_atan,
    "acot": _arccotangent,
    "asec": lambda x, p: _arccosine(_reciprocal(x, p), p),
    "acsc": lambda x, p: _arcsine(_reciprocal(x, p), p),
    "sinh": lambda x, p: _hyperbolic(x, p, -1),
    "cosh": lambda x, p: _hyperbolic(x, p, 1),
    "tanh": _hyperbolic_tangent,
    "coth": lambda x, p: _reciprocal(_hyperbolic_tangent(x, p), p),
    "sech": lambda x, p: _reciprocal(_hyperbolic(x, p, 1), p),
    "csch": lambda x, p: _reciprocal(_hyperbolic(x, p, -1), p),
    "asinh": lambda x, p: _inverse_hyperbolic(x, p, 1),
    "acosh": lambda x, p: _inverse_hyperbolic(x, p, -1),
    "sgn": _sign,
}
