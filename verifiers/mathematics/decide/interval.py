"""Guaranteed bounds of trees at a stated precision: real and complex interval arithmetic.

Calls share nothing but a lock: the library that computes the elementary functions caches constants in a way that is not
safe under threads.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from mpmath import libmp

from verizero.verifiers.mathematics.decide.exact import BUDGET, NODE, Exact, NotExact, TooBig, Undefined, exact
from verizero.verifiers.mathematics.read.syntax_tree import Node, num
from verizero.verifiers.mathematics.words.vocabulary import HYPERBOLIC

Mpi = Any
"""A pair of lower and upper bound, each a raw big float."""
MAX_EXPONENT_BITS = 40
MAX_ANGLE_BITS = 4_000
"""Bound on log2 of an angle: its remainder by a turn needs as many more digits of pi."""
ONE = (libmp.fone, libmp.fone)


def is_zero_inside(value: Mpi) -> bool:
    """True if zero lies within the bounds."""
    return bool(libmp.mpf_sign(value[0]) <= 0 <= libmp.mpf_sign(value[1]))


def magnitude(value: Mpi) -> int:
    """Return log2 of the greatest absolute value within the bounds, rounded up; very small for zero."""
    # A raw float is (sign, mantissa, exponent, bits of the mantissa).
    return max((int(x[2] + x[3]) for x in value if x[1]), default=-(10**9))


def angle(value: Mpi) -> Mpi:
    """Return `value`.

    Raises: TooBig, before anything is computed, if it is too large to find its remainder by a turn.
    """
    if magnitude(value) > MAX_ANGLE_BITS:
        raise TooBig
    return value


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
    "sin": lambda x, p: libmp.mpi_sin(angle(x), p),
    "cos": lambda x, p: libmp.mpi_cos(angle(x), p),
    "tan": lambda x, p: libmp.mpi_tan(angle(x), p),
    "cot": lambda x, p: libmp.mpi_div(libmp.mpi_cos(angle(x), p), libmp.mpi_sin(x, p), p),
    "sec": lambda x, p: _reciprocal(libmp.mpi_cos(angle(x), p), p),
    "csc": lambda x, p: _reciprocal(libmp.mpi_sin(angle(x), p), p),
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


LOCK = threading.Lock()


def _fresh_lock() -> None:
    """Make a lock that no thread of the parent holds, for a process forked while a thread did."""
    global LOCK
    LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_lock)
MAX_STEPS = 1_500
STEP = 10
"""The work of an operation, for each bit of the precision."""
MAX_HYPERBOLIC_BITS = 12
"""Bound on the arguments of HYPERBOLIC functions, whose exponentials leave no trace in the value: tanh(100) is 1 to 87
digits."""


class Bounds(NamedTuple):
    """Real part and, if it is not known to be real, imaginary part."""

    re: Mpi
    im: Mpi | None = None
    extent: int = 0
    """Logarithm to base 2 of the largest, or of one over the smallest, part of the calculation."""


ZERO = (libmp.fzero, libmp.fzero)


def bounds(tree: Node, names: Mapping[str, Exact], precision: int, is_complex: bool) -> Bounds:
    """Return bounds of `tree` in `precision` bits; `is_complex` allows roots and logarithms of negative numbers.

    Raises: NotExact if the tree holds something without a numeric value, Undefined, TooBig.
    """
    evaluation = _Evaluation(names, precision, is_complex)
    with LOCK:
        try:
            return evaluation.value(tree)._replace(extent=evaluation.extent)
        except (ValueError, ZeroDivisionError, OverflowError, NotImplementedError) as exc:
            raise Undefined from exc


def lower(value: Mpi) -> Fraction:
    """Return the lower bound as a fraction."""
    return Fraction(*libmp.to_rational(value[0]))


def upper(value: Mpi) -> Fraction:
    """Return the upper bound as a fraction."""
    return Fraction(*libmp.to_rational(value[1]))


def middle(value: Mpi) -> float:
    """Return a float near the bounds; infinite if a float cannot hold it."""
    try:
        return float(libmp.to_float(value[0]))
    except OverflowError:
        return -math.inf if value[0][0] else math.inf


def difference(a: Bounds, b: Bounds, precision: int) -> Bounds:
    """Return bounds of a - b."""
    imaginary = None if a.im is None and b.im is None else libmp.mpi_sub(a.im or ZERO, b.im or ZERO, precision)
    return Bounds(libmp.mpi_sub(a.re, b.re, precision), imaginary)


def width(value: Mpi, precision: int) -> int:
    """Return log2 of the width of the bounds, rounded up."""
    spread = libmp.mpf_sub(value[1], value[0], precision, "u")
    return spread[2] + spread[3] if spread[1] else -(10**9)


class _Evaluation:
    """An evaluation at a fixed precision."""

    __slots__ = ("extent", "is_complex", "names", "precision", "steps")

    def __init__(self, names: Mapping[str, Exact], precision: int, is_complex: bool) -> None:
        self.names = names
        self.precision = precision
        self.is_complex = is_complex
        self.steps = 0
        self.extent = 0

    def value(self, tree: Node) -> Bounds:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise TooBig
        BUDGET.spend(NODE + STEP * self.precision)
        op = tree.op
        if op in {"num", "dec"}:
            return Bounds(self.rational(tree.args[0]))
        if op == "sym":
            if tree.args[0] not in self.names:
                raise NotExact
            return Bounds(self.rational(self.names[tree.args[0]]))
        rule = RULES.get(op)
        if rule is None:
            raise NotExact
        bounds = rule(self, tree)
        for part in (bounds.re, bounds.im):
            if part is not None:
                _check(part)
                if not is_zero_inside(part):
                    self.extent = max(self.extent, abs(magnitude(part)))
        return bounds

    def rational(self, value: Exact) -> Mpi:
        if isinstance(value, int):
            low, high = (libmp.from_int(value, self.precision, r) for r in "fc")
        else:
            low, high = (libmp.from_rational(value.numerator, value.denominator, self.precision, r) for r in "fc")
        return (low, high)

    def real(self, tree: Node) -> Mpi:
        bounds = self.value(tree)
        if bounds.im is not None and bounds.im != ZERO:
            raise Undefined
        return bounds.re

    def constant(self, tree: Node) -> Bounds:
        name = tree.args[0]
        if name == "pi":
            return Bounds(half_turn(self.precision))
        if name == "e":
            return Bounds(libmp.mpi_exp(ONE, self.precision))
        if name == "i":
            return Bounds(ZERO, ONE)
        raise NotExact

    def add(self, tree: Node) -> Bounds:
        total = self.value(tree.args[0])
        for a in tree.args[1:]:
            b = self.value(a)
            both = total.im is not None and b.im is not None
            imaginary = libmp.mpi_add(total.im, b.im, self.precision) if both else total.im or b.im
            total = Bounds(libmp.mpi_add(total.re, b.re, self.precision), imaginary)
        return total

    def multiply(self, tree: Node) -> Bounds:
        total = self.value(tree.args[0])
        for a in tree.args[1:]:
            total = self.times(total, self.value(a))
        return total

    def times(self, a: Bounds, b: Bounds) -> Bounds:
        if a.im is None and b.im is None:
            return Bounds(libmp.mpi_mul(a.re, b.re, self.precision))
        if b.im is None:
            a, b = b, a
        if a.im is None:
            return Bounds(libmp.mpi_mul(a.re, b.re, self.precision), libmp.mpi_mul(a.re, b.im, self.precision))
        return Bounds(*libmp.mpci_mul((a.re, a.im), (b.re, b.im), self.precision))

    def over(self, a: Bounds, b: Bounds) -> Bounds:
        if _may_be_zero(b):
            raise Undefined
        if b.im is None:
            imaginary = None if a.im is None else libmp.mpi_div(a.im, b.re, self.precision)
            return Bounds(libmp.mpi_div(a.re, b.re, self.precision), imaginary)
        return Bounds(*libmp.mpci_div((a.re, a.im or ZERO), (b.re, b.im), self.precision))

    def negative(self, tree: Node) -> Bounds:
        a = self.value(tree.args[0])
        return Bounds(libmp.mpi_neg(a.re), None if a.im is None else libmp.mpi_neg(a.im))

    def raised(self, base_tree: Node, exponent_tree: Node) -> Bounds:
        """Return bounds of a power. A rational exponent keeps a real base real, so that it is tried first."""
        base = self.value(base_tree)
        try:
            exponent: Exact | None = exact(exponent_tree, self.names)
        except NotExact:
            exponent = None
        if exponent is not None and exponent.denominator == 1:
            return self.whole_power(base, int(exponent))
        if base.im is None and exponent is not None and base.re == ZERO:
            if exponent < 0:
                raise Undefined
            return Bounds(ZERO)
        power = Bounds(self.rational(exponent)) if exponent is not None else self.value(exponent_tree)
        positive = base.im is None and libmp.mpf_sign(base.re[0]) > 0
        if positive and power.im is None:
            if exponent == Fraction(1, 2):
                return Bounds(libmp.mpi_sqrt(base.re, self.precision))
            product = libmp.mpi_mul(libmp.mpi_log(base.re, self.precision), power.re, self.precision)
            return Bounds(self.exponential(product))
        # An odd root of a negative number is the real one.
        if base.im is None and exponent is not None and exponent.denominator % 2 and libmp.mpf_sign(base.re[1]) < 0:
            inner = libmp.mpi_mul(libmp.mpi_log(libmp.mpi_neg(base.re), self.precision), power.re, self.precision)
            value = self.exponential(inner)
            return Bounds(libmp.mpi_neg(value) if exponent.numerator % 2 else value)
        return self.complex_power(base, power, exponent)

    def complex_power(self, base: Bounds, power: Bounds, exponent: Exact | None) -> Bounds:
        if not self.is_complex or _may_be_zero(base):
            raise Undefined
        if base.im is None and exponent == Fraction(1, 2) and libmp.mpf_sign(base.re[1]) < 0:
            return Bounds(ZERO, libmp.mpi_sqrt(libmp.mpi_neg(base.re), self.precision))
        if base.im is None and libmp.mpf_sign(base.re[0]) > 0:
            log = (libmp.mpi_log(base.re, self.precision), ZERO)
        else:
            log = libmp.mpci_log((base.re, base.im or ZERO), self.precision)
        product = libmp.mpci_mul(log, (power.re, power.im or ZERO), self.precision)
        length, (cosine, sine) = self.exponential(product[0]), libmp.mpi_cos_sin(angle(product[1]), self.precision)
        return self.times(Bounds(length), Bounds(cosine, sine))

    def exponential(self, exponent: Mpi) -> Mpi:
        if magnitude(exponent) > MAX_EXPONENT_BITS:
            raise TooBig
        return libmp.mpi_exp(exponent, self.precision)

    def whole_power(self, base: Bounds, power: int) -> Bounds:
        if power.bit_length() > MAX_EXPONENT_BITS:
            raise TooBig
        if power < 0:
            return self.over(Bounds(ONE), self.whole_power(base, -power))
        if base.im is None:
            return Bounds(libmp.mpi_pow_int(base.re, power, self.precision))
        total, square = Bounds(ONE), base  # by repeated squaring
        while power:
            if power & 1:
                total = self.times(total, square)
            power >>= 1
            if power:
                square = self.times(square, square)
        return total

    def function(self, tree: Node) -> Bounds:
        kind = tree.args[0]
        if kind in {"log", "ln"}:
            value = self.logarithm(tree.args[1])
            return value if kind == "ln" else self.over(value, self.logarithm(tree.args[2]))
        rule = FUNCTIONS.get(kind)
        if kind in {"Re", "Im"}:
            argument = self.value(tree.args[1])
            return Bounds(argument.re if kind == "Re" else argument.im or ZERO)
        if rule is None:
            raise NotExact
        argument = self.value(tree.args[1])
        if argument.im is not None:
            raise Undefined
        if kind in HYPERBOLIC:
            self.extent = max(self.extent, 3 * _size(argument.re))
        return Bounds(rule(argument.re, self.precision))

    def logarithm(self, tree: Node) -> Bounds:
        value = self.value(tree)
        if value.im is None and libmp.mpf_sign(value.re[0]) > 0:
            return Bounds(libmp.mpi_log(value.re, self.precision))
        if not self.is_complex or _may_be_zero(value):
            raise Undefined
        return Bounds(*libmp.mpci_log((value.re, value.im or ZERO), self.precision))

    def absolute(self, tree: Node) -> Bounds:
        value = self.value(tree.args[0])
        if value.im is None:
            return Bounds(libmp.mpi_abs(value.re, self.precision))
        squares = [libmp.mpi_pow_int(part, 2, self.precision) for part in (value.re, value.im)]
        return Bounds(libmp.mpi_sqrt(libmp.mpi_add(*squares, self.precision), self.precision))

    def rounded(self, tree: Node) -> Bounds:
        try:
            return self.rational_only(tree)
        except NotExact:
            value = self.real(tree.args[0])
        rounding = libmp.mpf_floor if tree.op == "floor" else libmp.mpf_ceil
        low, high = rounding(value[0]), rounding(value[1])
        if libmp.mpf_cmp(low, high):
            raise NotExact  # a whole number lies within the bounds
        return Bounds((low, high))

    def rational_only(self, tree: Node) -> Bounds:
        return Bounds(self.rational(exact(tree, self.names)))

    def degrees(self, tree: Node) -> Bounds:
        turn = Bounds(libmp.mpi_div(half_turn(self.precision), self.rational(180), self.precision))
        return self.times(self.value(tree.args[0]), turn)


def _may_be_zero(value: Bounds) -> bool:
    return is_zero_inside(value.re) and (value.im is None or is_zero_inside(value.im))


def _size(value: Mpi) -> int:
    """Return the greatest absolute value within the bounds, rounded up.

    Raises: TooBig beyond what an exponential may take.
    """
    bits = magnitude(value)
    if bits > MAX_HYPERBOLIC_BITS:
        raise TooBig
    return 1 << max(bits, 0)


def _check(value: Mpi) -> None:
    """Raise Undefined if a bound is infinite or not a number."""
    # Such raw floats have no mantissa but an exponent.
    if any(x[1] == 0 and x[2] != 0 for x in value):
        raise Undefined


RULES: dict[str, Callable[[_Evaluation, Node], Bounds]] = {
    "const": _Evaluation.constant,
    "add": _Evaluation.add,
    "mul": _Evaluation.multiply,
    "div": lambda e, t: e.over(*map(e.value, t.args)),
    "neg": _Evaluation.negative,
    "pow": lambda e, t: e.raised(*t.args),
    "root": lambda e, t: e.raised(t.args[0], Node("div", (num(1), t.args[1]))),
    "fn": _Evaluation.function,
    "abs": _Evaluation.absolute,
    "floor": _Evaluation.rounded,
    "ceil": _Evaluation.rounded,
    "percent": lambda e, t: e.over(e.value(t.args[0]), Bounds(e.rational(100))),
    "deg": _Evaluation.degrees,
    **dict.fromkeys(("fact", "binom", "perm", "det"), _Evaluation.rational_only),
}
