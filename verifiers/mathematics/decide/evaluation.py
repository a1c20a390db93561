"""Values of trees: exact where they are rational, elsewhere guaranteed bounds at a stated precision, real or complex.

Each operation keeps exact values exact, within a budget that is checked before it, and takes bounds of them where
something irrational joins. Calls share nothing but a lock: the library that computes the elementary functions caches
constants in a way that is not safe under threads.
"""

from __future__ import annotations

import math
import operator
import os
import threading
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial, reduce
from typing import Any, NamedTuple, ParamSpec, TypeVar

from mpmath import libmp
from mpmath.ctx_iv import MPIntervalContext

from verizero.pipeline.errors import GradingError
from verizero.verifiers.mathematics.read.syntax_tree import Node
from verizero.verifiers.mathematics.words.vocabulary import HYPERBOLIC

P = ParamSpec("P")
T = TypeVar("T")
Exact = int | Fraction
EXACT = (int, Fraction)
Value = Any
"""An exact value, or an interval of `INTERVALS`, real (mpf) or complex (mpc)."""
Mpi = Any
"""A pair of lower and upper bound, each a raw big float."""
MAX_BITS = 60_000
"""Bound on a single exact number; 1900! has 18,000."""
MAX_WORK = 1_000_000
"""Bound on the bits of all exact results of an evaluation together: some milliseconds."""
MAX_DECISION = 20_000_000
"""Bound on the work of all evaluations of a decision together: a quarter of a second on a core of 2021."""
NODE = 500
"""The work of a node, in bits of results that take as long."""
STEP = 10
"""The work of an operation on bounds, for each bit of the precision."""
SQUARE_ROOT, OTHER_ROOT = 15, 12
"""The work of a root that is not rational, by shifts of the square of its bits: 1 and 12 ms for 60,000 bits."""
MAX_STEPS = 1_500
LOOK = 100_000
"""The work after which the clock is read again."""
NET_CPU_S = 20.0
"""CPU seconds of a decision after which its grader has failed, for what the count of work does not see."""
MAX_FACTORIAL = 3_000
MAX_DETERMINANT = 6
MAX_LOG_DENOMINATOR = 12
MAX_EXPONENT_BITS = 40
MAX_ANGLE_BITS = 4_000
"""Bound on log2 of an angle: its remainder by a turn needs as many more digits of pi."""
MAX_HYPERBOLIC_BITS = 12
"""Bound on arguments of HYPERBOLIC functions: beyond, exponentials leave no trace. tanh(100) is 1 to 87 digits."""


class NotExact(Exception):
    """The value is not rational, or not known to be; or the tree has no value in numbers."""


class Undefined(Exception):
    """The tree has no value, such as a quotient by zero."""


class TooBig(Exception):
    """The value would pass the budget."""


class OverBudget(Exception):
    """The decision has used up its budget of work."""


class Budget(threading.local):
    """The work that is left for the decision in this thread. Equal decisions count the same on every machine."""

    left = math.inf
    look_at = 0.0
    """The clock is read when no more than this is left: reading it takes longer than most evaluations."""
    started_s = math.inf

    def within(self, work: float, decide: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Return `decide(*args, **options)`, which has this much work, in place of the work that is left outside."""
        before = self.left, self.look_at, self.started_s
        self.left, self.look_at, self.started_s = work, max(0.0, work - LOOK), time.thread_time()
        try:
            return decide(*args, **options)
        finally:
            self.left, self.look_at, self.started_s = before

    def spend(self, work: int) -> None:
        """Count the work. Raises: OverBudget; GradingError if the decision takes far more time than its work should."""
        self.left = left = self.left - work
        if left >= self.look_at:
            return
        if left < 0:
            raise OverBudget
        self.look_at = max(0.0, left - LOOK)
        if time.thread_time() - self.started_s > NET_CPU_S:
            raise GradingError(f"a decision took over {NET_CPU_S:.0f} s of CPU time; report the answer and its gold")


BUDGET = Budget()
INTERVALS = MPIntervalContext()
"""Interval arithmetic, at the precision of the evaluation that holds the lock."""
LOCK = threading.Lock()


def _fresh_lock() -> None:
    """Make a lock that no thread of the parent holds, for a process forked while a thread did."""
    global LOCK
    LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_lock)


class Bounds(NamedTuple):
    """Bounds of a value: pairs of lower and upper bound, each a raw big float."""

    re: Mpi
    im: Mpi
    """Both zero of what is known to be real."""
    extent: int
    """Logarithm to base 2 of the largest, or of one over the smallest, part of the calculation."""


ZERO = (libmp.fzero, libmp.fzero)


def exact(tree: Node, names: Mapping[str, Exact]) -> Exact:
    """Return the rational value of `tree` where `names` gives its symbols.

    Raises: NotExact if it is not rational by its form, Undefined, TooBig.
    """
    evaluation = _Evaluation(names, 0, False)
    try:
        value: Exact = evaluation.value(tree)
        return value
    finally:
        BUDGET.spend(NODE + evaluation.work)


def bounds(tree: Node, names: Mapping[str, Exact], precision: int, is_complex: bool) -> Bounds:
    """Return bounds of `tree` in `precision` bits; `is_complex` allows roots and logarithms of negative numbers.

    Raises: NotExact if the tree holds something without a numeric value, Undefined, TooBig.
    """
    evaluation = _Evaluation(names, precision, is_complex)
    with LOCK:
        INTERVALS.prec = precision
        try:
            value = as_bounds(evaluation.value(tree))
        except (ValueError, ZeroDivisionError, OverflowError, NotImplementedError) as exc:
            raise Undefined from exc
        finally:
            BUDGET.spend(evaluation.work)
    re, im = value._mpci_
    return Bounds(re, im, evaluation.extent)


def is_zero_inside(value: Mpi) -> bool:
    """True if zero lies within the bounds."""
    return bool(libmp.mpf_sign(value[0]) <= 0 <= libmp.mpf_sign(value[1]))


def magnitude(value: Mpi) -> int:
    """Return log2 of the greatest absolute value within the bounds, rounded up; very small for zero."""
    # A raw float is (sign, mantissa, exponent, bits of the mantissa).
    return max((int(x[2] + x[3]) for x in value if x[1]), default=-(10**9))


def is_exact(value: Value) -> bool:
    return isinstance(value, EXACT)


def as_bounds(value: Value) -> Value:
    """Return bounds of an exact value; other values as they are."""
    if isinstance(value, Fraction):
        return INTERVALS.mpf(value.numerator) / value.denominator
    return INTERVALS.mpf(value) if isinstance(value, int) else value


def _is_complex(value: Value) -> bool:
    return isinstance(value, INTERVALS.mpc)


def _may_be_zero(value: Value) -> bool:
    return all(map(is_zero_inside, value._mpci_))


def _angle(value: Value) -> Value:
    """Return `value`. Raises: TooBig, before any computation, if its remainder by a turn cannot be found."""
    if magnitude(value._mpi_) > MAX_ANGLE_BITS:
        raise TooBig
    return value


def _exponential(value: Value) -> Value:
    if magnitude(value._mpci_[0]) > MAX_EXPONENT_BITS:
        raise TooBig
    _angle(value.imag)
    return INTERVALS.exp(value)


def _inverse(value: Value) -> Value:
    if _may_be_zero(value):
        raise Undefined
    return 1 / value


def _of_ratio(value: Value) -> Mpi:
    """Return bounds within [-1, 1]: what only the rounding of a bound leaves outside is cut off."""
    if value > 1 or value < -1:
        raise Undefined
    low, high = value._mpi_
    return (
        libmp.fnone if libmp.mpf_lt(low, libmp.fnone) else low,
        libmp.fone if libmp.mpf_gt(high, libmp.fone) else high,
    )


def _arcsine(value: Value) -> Value:
    low, high = _of_ratio(value)
    precision = INTERVALS.prec
    return INTERVALS.make_mpf((libmp.mpf_asin(low, precision, "f"), libmp.mpf_asin(high, precision, "c")))


def _arccosine(value: Value) -> Value:
    low, high = _of_ratio(value)  # the function falls, so the bounds change places; pi/2 - arcsin 1 would be no zero
    precision = INTERVALS.prec
    return INTERVALS.make_mpf((libmp.mpf_acos(high, precision, "f"), libmp.mpf_acos(low, precision, "c")))


def _arctangent(value: Value) -> Value:
    return INTERVALS.make_mpf(libmp.mpi_atan(value._mpi_, INTERVALS.prec))


def _hyperbolic_sine(value: Value) -> Value:
    return (_exponential(value) - _exponential(-value)) / 2


def _hyperbolic_cosine(value: Value) -> Value:
    return (_exponential(value) + _exponential(-value)) / 2


def _signum(value: Value) -> int:
    low, high = map(libmp.mpf_sign, value._mpi_)
    if low != high:  # too wide to tell
        raise Undefined
    return int(low)


FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    "sin": lambda x: INTERVALS.sin(_angle(x)),
    "cos": lambda x: INTERVALS.cos(_angle(x)),
    "tan": lambda x: INTERVALS.tan(_angle(x)),
    "cot": lambda x: INTERVALS.cos(_angle(x)) / INTERVALS.sin(x),
    "sec": lambda x: 1 / INTERVALS.cos(_angle(x)),
    "csc": lambda x: 1 / INTERVALS.sin(_angle(x)),
    "asin": _arcsine,
    "acos": _arccosine,
    "atan": _arctangent,
    "acot": lambda x: INTERVALS.pi / 2 - _arctangent(x),
    "asec": lambda x: _arccosine(_inverse(x)),
    "acsc": lambda x: _arcsine(_inverse(x)),
    "sinh": _hyperbolic_sine,
    "cosh": _hyperbolic_cosine,
    "tanh": lambda x: _hyperbolic_sine(x) / _hyperbolic_cosine(x),
    "coth": lambda x: _hyperbolic_cosine(x) / _hyperbolic_sine(x),
    "sech": lambda x: 1 / _hyperbolic_cosine(x),
    "csch": lambda x: 1 / _hyperbolic_sine(x),
    "asinh": lambda x: INTERVALS.ln(x + INTERVALS.sqrt(x**2 + 1)),
    "acosh": lambda x: INTERVALS.ln(x + INTERVALS.sqrt(x**2 - 1)),
    "sgn": _signum,
}
OF_EXACT: dict[str, Callable[..., Exact]] = {"max": max, "min": min, "gcd": math.gcd, "lcm": math.lcm}
"""Functions of exact values only."""


class _Evaluation:
    """An evaluation: the values of names and the work done so far."""

    __slots__ = ("extent", "is_complex", "names", "precision", "steps", "work")

    def __init__(self, names: Mapping[str, Exact], precision: int, is_complex: bool) -> None:
        self.names = names
        self.precision = precision
        """Bits of the bounds of what is not rational; 0 if all must be."""
        self.is_complex = is_complex
        self.steps = 0
        self.work = 0
        self.extent = 0

    def value(self, tree: Node) -> Value:
        if self.precision:
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise TooBig
            BUDGET.spend(NODE + STEP * self.precision)
        op = tree.op
        if op == "num" or op == "dec":
            return tree.args[0]
        if op == "sym":
            if tree.args[0] not in self.names:
                raise NotExact
            return self.names[tree.args[0]]
        rule = RULES.get(op)
        if rule is None:
            raise NotExact
        value = rule(self, tree)
        if is_exact(value):
            value = self.counted(value)
        if not self.precision:
            return value
        self.note(as_bounds(value))
        return value if is_exact(value) or value._mpci_ != (ZERO, ZERO) else 0

    def counted(self, value: Exact) -> Value:
        """Return the value, or bounds of it if it passes the budget. Raises: TooBig if it does and must be exact."""
        if isinstance(value, Fraction) and value.denominator == 1:
            value = value.numerator
        bits = value.bit_length() if isinstance(value, int) else _bits(value)
        self.work += bits
        if bits <= MAX_BITS and self.work <= MAX_WORK:
            return value
        if not self.precision:
            raise TooBig
        return as_bounds(value)

    def is_over(self) -> bool:
        """True if exact values have used up the budget, and bounds of them are taken."""
        return self.precision > 0 and self.work > MAX_WORK

    def not_exact(self, exc: Exception, base: Exact, degree: int) -> None:
        """Count the roots of `base` that were tried. Raises: `exc`, unless bounds take the place of exact values."""
        if not self.precision:
            raise exc
        if isinstance(exc, NotExact):
            BUDGET.spend(_bits(base) ** 2 >> (SQUARE_ROOT if degree == 2 else OTHER_ROOT))

    def note(self, value: Value) -> None:
        """Take an intermediate value's size into the extent. Raises: Undefined if a bound is infinite or no number."""
        for part in value._mpci_ if _is_complex(value) else (value._mpi_,):
            if any(x[1] == 0 and x[2] != 0 for x in part):  # such raw floats have no mantissa but an exponent
                raise Undefined
            if not is_zero_inside(part):
                self.extent = max(self.extent, abs(magnitude(part)))

    def joined(self, operation: Callable[[Value, Value], Value], a: Value, b: Value) -> Value:
        """Return the sum or product of two values."""
        if (self.precision and is_exact(a) != is_exact(b)) or self.is_over():
            a, b = as_bounds(a), as_bounds(b)
        total = operation(a, b)
        # Counted here too, as thousands of factors would grow a product before the check of its node.
        return self.counted(total) if is_exact(total) else total

    def quotient(self, a: Value, b: Value) -> Value:
        if is_exact(a) and is_exact(b):
            return quotient(a, b)
        return as_bounds(a) / as_bounds(b)

    def constant(self, tree: Node) -> Value:
        name = tree.args[0]
        if not self.precision or name not in {"pi", "e", "i"}:
            raise NotExact
        return INTERVALS.j if name == "i" else +(INTERVALS.pi if name == "pi" else INTERVALS.e)

    def power(self, base: Value, exponent: Value) -> Value:
        """Return a power; an exact exponent keeps a real base real."""
        if is_exact(base) and is_exact(exponent) and (base in (0, 1, -1) or not self.is_over()):
            try:
                return raised(base, exponent)
            except (NotExact, TooBig) as exc:
                self.not_exact(exc, base, exponent.denominator)
        rational = exponent if is_exact(exponent) else None
        base, exponent = as_bounds(base), as_bounds(exponent)
        if rational is not None and rational.denominator == 1:
            if rational.numerator.bit_length() > MAX_EXPONENT_BITS:
                raise TooBig
            return base**exponent
        if _is_complex(base) or _is_complex(exponent) or not base > 0:
            return self.complex_power(base, exponent, rational)
        return INTERVALS.sqrt(base) if rational == Fraction(1, 2) else _exponential(INTERVALS.ln(base) * exponent)

    def complex_power(self, base: Value, exponent: Value, rational: Exact | None) -> Value:
        is_negative = not _is_complex(base) and base < 0
        # An odd root of a negative number is the real one.
        if is_negative and rational is not None and rational.denominator % 2:
            value = _exponential(INTERVALS.ln(-base) * exponent)
            return -value if rational.numerator % 2 else value
        if is_negative and self.is_complex and rational == Fraction(1, 2):
            return INTERVALS.mpc(0, INTERVALS.sqrt(-base))
        return _exponential(self.log(base) * exponent)

    def log(self, value: Value) -> Value:
        """Return the natural logarithm."""
        value = as_bounds(value)
        if not _is_complex(value) and value > 0:
            return INTERVALS.ln(value)
        if not self.is_complex or _may_be_zero(value):
            raise Undefined
        return INTERVALS.ln(INTERVALS.mpc(value.real, value.imag))

    def function(self, tree: Node) -> Value:
        kind, *arguments = tree.args
        if kind in OF_EXACT:
            values = [self.value(a) for a in arguments]
            if not all(map(is_exact, values)):
                raise NotExact
            if kind in {"gcd", "lcm"} and not all(isinstance(v, int) for v in values):
                raise Undefined
            return OF_EXACT[kind](*values) if len(values) > 1 else values[0]
        if kind == "log":
            value, base = map(self.value, arguments)
            if is_exact(value) and is_exact(base):
                try:
                    return logarithm(value, base)
                except (NotExact, TooBig) as exc:
                    self.not_exact(exc, base, MAX_LOG_DENOMINATOR)
            return self.log(value) / self.log(base)
        rule = FUNCTIONS.get(kind)
        if not self.precision or (rule is None and kind not in {"ln", "Re", "Im"}):
            raise NotExact
        argument = as_bounds(self.value(arguments[0]))
        if rule is None:
            return self.log(argument) if kind == "ln" else argument.real if kind == "Re" else argument.imag
        if _is_complex(argument):
            raise Undefined
        if kind in HYPERBOLIC:
            bits = magnitude(argument._mpi_)
            if bits > MAX_HYPERBOLIC_BITS:
                raise TooBig
            self.extent = max(self.extent, 3 << max(bits, 0))
        return rule(argument)

    def rounded(self, tree: Node) -> Value:
        value = self.value(tree.args[0])
        if is_exact(value):
            return math.floor(value) if tree.op == "floor" else math.ceil(value)
        real, imaginary = value._mpci_
        if imaginary != ZERO:
            raise Undefined
        if magnitude(real) > MAX_BITS:
            raise TooBig
        rounding = libmp.mpf_floor if tree.op == "floor" else libmp.mpf_ceil
        low, high = (libmp.to_int(rounding(end)) for end in real)
        if low != high:
            raise NotExact  # a whole number lies within the bounds
        return int(low)

    def factorial(self, tree: Node) -> Exact:
        n = self.value(tree.args[0])
        if not is_exact(n):
            raise NotExact
        if not isinstance(n, int) or n < 0:
            raise Undefined
        if n > MAX_FACTORIAL:
            raise TooBig
        return math.factorial(n)

    def choose(self, tree: Node) -> Exact:
        n, k = self.value(tree.args[0]), self.value(tree.args[1])
        if not isinstance(n, int) or not isinstance(k, int) or n < 0 or (k < 0 and tree.op == "perm"):
            raise NotExact
        if k < 0:
            return 0
        if n > MAX_FACTORIAL:
            raise TooBig
        self.work += 4 * n  # as many products
        return math.comb(n, k) if tree.op == "binom" else math.perm(n, k)

    def determinant(self, rows: list[list[Value]]) -> Value:
        """Return the determinant, developed along the first row."""
        if any(len(row) != len(rows) for row in rows) or len(rows) > MAX_DETERMINANT:
            raise Undefined
        total: Value = 0 if len(rows) > 1 else rows[0][0]
        for i, cell in enumerate(rows[0] if len(rows) > 1 else ()):
            minor = self.determinant([[*row[:i], *row[i + 1 :]] for row in rows[1:]])
            term = self.joined(operator.mul, -cell if i % 2 else cell, minor)
            total = self.joined(operator.add, total, term)
        return total

    def degrees(self, tree: Node) -> Value:
        if not self.precision:
            raise NotExact
        return as_bounds(self.value(tree.args[0])) * INTERVALS.pi / 180


def _bits(value: Exact) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def quotient(a: Exact, b: Exact) -> Exact:
    """Return a / b, an int if it is whole. Raises: Undefined if b is zero."""
    if b == 0:
        raise Undefined
    if isinstance(a, int) and isinstance(b, int):
        whole, rest = divmod(a, b)
        return whole if rest == 0 else Fraction(a, b)
    value = Fraction(a) / b
    return value.numerator if value.denominator == 1 else value


def raised(base: Exact, exponent: Exact) -> Exact:
    """Return base ** exponent where rational. Raises: NotExact, Undefined for a negative power of zero, TooBig."""
    if exponent.denominator == 1:
        power = int(exponent)
        if base == 0:
            if power < 0:
                raise Undefined
            return 0 if power else 1
        if base in (1, -1):
            return 1 if base == 1 or power % 2 == 0 else -1
        if _bits(base) * abs(power) > 2 * MAX_BITS:
            raise TooBig
        return base**power if power >= 0 else quotient(1, base**-power)
    if base < 0:
        # The real root: (-8)^(1/3) is -2, as in schools, and not the principal complex value.
        if exponent.denominator % 2 == 0:
            raise NotExact
        value = raised(-base, exponent)
        return -value if exponent.numerator % 2 else value
    above, below = (_whole_root(part, exponent.denominator) for part in (base.numerator, base.denominator))
    if above is None or below is None:
        raise NotExact
    return raised(quotient(above, below), exponent.numerator)


def logarithm(value: Exact, base: Exact) -> Exact:
    """Return the logarithm of `value` if rational: 3 for 8 and base 2. Raises: NotExact if it is not, or not real."""
    if value <= 0 or base <= 0 or base == 1:
        raise NotExact
    divisor = _natural_log(base)
    if divisor == 0:  # a base too near to 1 for a float
        raise NotExact
    near = Fraction(_natural_log(value) / divisor).limit_denominator(MAX_LOG_DENOMINATOR)
    exponent = near.numerator if near.denominator == 1 else near
    if raised(base, exponent) != value:
        raise NotExact
    return exponent


def _natural_log(value: Exact) -> float:
    return math.log(value.numerator) - math.log(value.denominator)


def _whole_root(value: int, degree: int) -> int | None:
    """Return the integer whose `degree`-th power is `value` >= 0, None if there is none."""
    if value in (0, 1):
        return value
    if degree > value.bit_length():
        return None

    def step(root: int) -> int:
        return int((degree - 1) * root + value // root ** (degree - 1)) // degree

    if degree == 2:
        root = math.isqrt(value)
        return root if root * root == value else None
    # Newton's steps from a float near the root: the first leads to it or above it, and the others fall to it.
    exponent = math.log2(value) / degree
    shift = max(0, int(exponent) - 52)
    root = step(int(2 ** (exponent - shift)) + 1 << shift)
    while (better := step(root)) < root:
        root = better
    return root if root**degree == value else None


RULES: dict[str, Callable[[_Evaluation, Node], Value]] = {
    "const": _Evaluation.constant,
    "add": lambda e, t: reduce(partial(e.joined, operator.add), map(e.value, t.args)),
    "mul": lambda e, t: reduce(partial(e.joined, operator.mul), map(e.value, t.args)),
    "div": lambda e, t: e.quotient(*map(e.value, t.args)),
    "neg": lambda e, t: -e.value(t.args[0]),
    "pow": lambda e, t: e.power(*map(e.value, t.args)),
    "root": lambda e, t: e.power(e.value(t.args[0]), e.quotient(1, e.value(t.args[1]))),
    "fact": _Evaluation.factorial,
    "binom": _Evaluation.choose,
    "perm": _Evaluation.choose,
    "abs": lambda e, t: abs(e.value(t.args[0])),
    "floor": _Evaluation.rounded,
    "ceil": _Evaluation.rounded,
    "percent": lambda e, t: e.quotient(e.value(t.args[0]), 100),
    "deg": _Evaluation.degrees,
    "fn": _Evaluation.function,
    "det": lambda e, t: e.determinant([[e.value(c) for c in row.args[2:]] for row in t.args[0].args]),
}
