"""Exact rational values of trees: integers and fractions, within a budget that is checked before each operation."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import ParamSpec, TypeVar

from verizero.pipeline.errors import GradingError
from verizero.verifiers.mathematics.read.syntax_tree import Node

P = ParamSpec("P")
T = TypeVar("T")
Exact = int | Fraction
MAX_BITS = 60_000
"""Bound on a single number; 1900! has 18,000."""
MAX_WORK = 1_000_000
"""Bound on the bits of all results of an evaluation together: some milliseconds."""
MAX_DECISION = 20_000_000
"""Bound on the work of all evaluations of a decision together: a quarter of a second on a core of 2021."""
NODE = 500
"""The work of a node, in bits of results that take as long."""
LOOK = 100_000
"""The work after which the clock is read again."""
NET_CPU_S = 20.0
"""CPU seconds of a decision after which its grader has failed, for what the count of work does not see."""
MAX_FACTORIAL = 3_000
MAX_DETERMINANT = 6
MAX_LOG_DENOMINATOR = 12


class NotExact(Exception):
    """The value is not rational, or not known to be."""


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
        """Count the work.

        Raises: OverBudget; GradingError if the decision takes far more time than its work should.
        """
        self.left = left = self.left - work
        if left >= self.look_at:
            return
        if left < 0:
            raise OverBudget
        self.look_at = max(0.0, left - LOOK)
        if time.thread_time() - self.started_s > NET_CPU_S:
            raise GradingError(f"a decision took over {NET_CPU_S:.0f} s of CPU time; report the answer and its gold")


BUDGET = Budget()


def exact(tree: Node, names: Mapping[str, Exact]) -> Exact:
    """Return the rational value of `tree` where `names` gives its symbols.

    Raises: NotExact if it is not rational by its form, Undefined, TooBig.
    """
    evaluation = _Evaluation(names)
    try:
        return evaluation.value(tree)
    finally:
        BUDGET.spend(NODE + evaluation.work)


class _Evaluation:
    """An evaluation: the values of names and the work done so far."""

    __slots__ = ("names", "work")

    def __init__(self, names: Mapping[str, Exact]) -> None:
        self.names = names
        self.work = 0

    def value(self, tree: Node) -> Exact:
        op = tree.op
        if op == "num" or op == "dec":
            number: Exact = tree.args[0]
            return number
        if op == "sym":
            if tree.args[0] not in self.names:
                raise NotExact
            return self.names[tree.args[0]]
        rule = RULES.get(op)
        if rule is None:
            raise NotExact
        result = rule(self, tree)
        bits = result.bit_length() if isinstance(result, int) else _bits(result)
        self.work += bits
        if bits > MAX_BITS or self.work > MAX_WORK:
            raise TooBig
        return result

    def add(self, tree: Node) -> Exact:
        total: Exact = 0
        for a in tree.args:
            total = total + self.value(a)
        return total

    def multiply(self, tree: Node) -> Exact:
        total: Exact = 1
        for a in tree.args:
            total = total * self.value(a)
            # Counted within the product too, as thousands of factors would grow it before its own check.
            self.work += _bits(total)
            if self.work > MAX_WORK:
                raise TooBig
        return total

    def absolute(self, tree: Node) -> Exact:
        value = self.value(tree.args[0])
        return -value if value < 0 else value

    def root(self, tree: Node) -> Exact:
        degree = self.value(tree.args[1])
        if degree == 0:
            raise Undefined
        return raised(self.value(tree.args[0]), quotient(1, degree))

    def factorial(self, tree: Node) -> Exact:
        n = self.value(tree.args[0])
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

    def function(self, tree: Node) -> Exact:
        kind = tree.args[0]
        if kind in {"max", "min", "gcd", "lcm"}:
            values = [self.value(a) for a in tree.args[1:]]
            if kind in {"max", "min"}:
                return max(values) if kind == "max" else min(values)
            whole = [v for v in values if isinstance(v, int)]
            if len(whole) < len(values):
                raise Undefined
            return math.gcd(*whole) if kind == "gcd" else math.lcm(*whole)
        if kind == "log":
            return logarithm(self.value(tree.args[1]), self.value(tree.args[2]))
        raise NotExact

    def determinant(self, tree: Node) -> Exact:
        # Gaussian elimination in fractions, which stay exact.
        rows = [[Fraction(self.value(c)) for c in row.args[2:]] for row in tree.args[0].args]
        if any(len(row) != len(rows) for row in rows) or len(rows) > MAX_DETERMINANT:
            raise Undefined
        total = Fraction(1)
        for i in range(len(rows)):
            pivot = next((r for r in range(i, len(rows)) if rows[r][i]), None)
            if pivot is None:
                return 0
            if pivot != i:
                rows[i], rows[pivot], total = rows[pivot], rows[i], -total
            total *= rows[i][i]
            for row in rows[i + 1 :]:
                factor = row[i] / rows[i][i]
                row[i:] = [a - factor * b for a, b in zip(row[i:], rows[i][i:], strict=True)]
        return total


def _bits(value: Exact) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def quotient(a: Exact, b: Exact) -> Exact:
    """Return a / b, an int if it is whole.

    Raises: Undefined if b is zero.
    """
    if b == 0:
        raise Undefined
    if isinstance(a, int) and isinstance(b, int):
        whole, rest = divmod(a, b)
        return whole if rest == 0 else Fraction(a, b)
    value = Fraction(a) / b
    return value.numerator if value.denominator == 1 else value


def raised(base: Exact, exponent: Exact) -> Exact:
    """Return base ** exponent where that is rational.

    Raises: NotExact if it is irrational, Undefined for a negative power of zero, TooBig before it is computed.
    """
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
    """Return the logarithm of `value` where that is rational: 3 for 8 and the base 2.

    Raises: NotExact if it is irrational or not real.
    """
    if value <= 0 or base <= 0 or base == 1:
        raise NotExact
    near = Fraction(_natural_log(value) / _natural_log(base)).limit_denominator(MAX_LOG_DENOMINATOR)
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


RULES: dict[str, Callable[[_Evaluation, Node], Exact]] = {
    "add": _Evaluation.add,
    "mul": _Evaluation.multiply,
    "div": lambda e, t: quotient(*map(e.value, t.args)),
    "neg": lambda e, t: -e.value(t.args[0]),
    "pow": lambda e, t: raised(*map(e.value, t.args)),
    "root": _Evaluation.root,
    "fact": _Evaluation.factorial,
    "binom": _Evaluation.choose,
    "perm": _Evaluation.choose,
    "abs": _Evaluation.absolute,
    "floor": lambda e, t: math.floor(e.value(t.args[0])),
    "ceil": lambda e, t: math.ceil(e.value(t.args[0])),
    "percent": lambda e, t: quotient(e.value(t.args[0]), 100),
    "fn": _Evaluation.function,
    "det": _Evaluation.determinant,
}
