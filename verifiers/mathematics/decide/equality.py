"""Equality of two expressions as functions: by equal trees, by exact rational values, then by guaranteed bounds.

Free symbols are tried at points drawn from the texts of both sides, so that the same pair always meets the same points
and no answer can be written to fit them beforehand.
"""

from __future__ import annotations

import math
import random
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache

from mpmath import libmp

from verizero.verifiers.mathematics.decide.evaluation import (
    BUDGET,
    NODE,
    ZERO,
    Exact,
    Mpi,
    NotExact,
    TooBig,
    Undefined,
    bounds,
    exact,
    is_zero_inside,
    magnitude,
    quotient,
)
from verizero.verifiers.mathematics.read.syntax_tree import (
    EXPRESSION,
    IMAGINARY,
    Node,
    difference,
    has,
    nodes,
    num,
    sym,
    variables,
    with_children,
)
from verizero.verifiers.mathematics.words.vocabulary import words_of

NUM_EXACT_POINTS = 2
NUM_WHOLE_POINTS = 6
"""For symbols that must be whole numbers (n!, (-1)^n), which are drawn small."""
NUM_REAL_POINTS = 3
NUM_BROKEN_POINTS = 30
"""For floor and ceiling, which may differ at whole numbers only, or between them only."""
ENOUGH_BROKEN_POINTS = 10
WHOLE_NAMES = re.compile(r"[nmkjlpqrsNMK](?:_\w+)?")
"""Names that stand for whole numbers under floor and ceiling."""
COMPLEX_NAMES = re.compile(r"[zw](?:_\w+)?")
EXTREMES = (("max",), ("min",))
SCALES = (Fraction(1, 10), Fraction(1, 100), Fraction(10), Fraction(100), Fraction(1_000))
"""Scales of more points: a function may be defined only close to zero, or only far from it."""
MAX_SIGNED_NAMES = 6
COMPARABLE = EXPRESSION - words_of("word call money pm mp")
PRECISION = 160
MAX_PRECISION = 16_000
MARGIN = 192
"""Bits in which unequal values must not agree, beyond those of their digits and of their largest parts."""
ZERO_BITS = 1_200
"""A difference below 2^-1200 that shrinks with the precision is zero."""


def same(a: Node, b: Node) -> bool | None:
    """True if `a` equals `b` for all values of their symbols; None if that could not be decided.

    `a` is the gold: `b` must be defined wherever `a` is (as a real number).
    """
    BUDGET.spend(NODE)
    if a == b:
        return True
    if has(a, "call") or has(b, "call"):
        a, b = _with_names_for_calls(a, b)
    if not (_is_expression(a) and _is_expression(b)):
        return False if _is_expression(a) or _is_expression(b) else None
    # Expressions with rational values are compared exactly. A few points suffice: at values of seven digits an
    # accidental zero of the difference is improbable, and an answer cannot be written to fit points that it changes.
    names = sorted(variables(a) | variables(b))
    whole = bool(names) and (_wants_whole(a) or _wants_whole(b))
    equal: bool | None = None
    try:
        equal = _same_exactly(a, b, names, whole)
    except TooBig:
        if not names:
            return _same_powers(a, b)
    except NotExact:
        pass
    if equal is None:
        with suppress(NotExact, TooBig):
            equal = _same_in_bounds(a, b, names, whole)
    return False if equal is None and not names and _has_value(a) and not _has_value(b) else equal


def _with_names_for_calls(a: Node, b: Node) -> tuple[Node, Node]:
    """Return the trees with a name in the place of each value of an unknown function, the same for equal values."""
    known: list[Node] = []

    def named(tree: Node) -> Node:
        if tree.op != "call":
            return with_children(tree, named)
        for call in known:
            alike = call.args[0] == tree.args[0] and len(call.args) == len(tree.args)
            if alike and all(same(x, y) for x, y in zip(call.args[1:], tree.args[1:], strict=True)):
                return sym(str(call))
        known.append(tree)
        return sym(str(tree))

    return named(a), named(b)


def _same_powers(a: Node, b: Node) -> bool | None:
    """True if two powers too big to be worked out are the same: b^x = b^y for a whole b above 1 if x = y."""
    if not a.op == b.op == "pow" or a.args[0] != b.args[0] or a.args[0].op != "num":
        return None
    base = a.args[0].args[0]
    return same(a.args[1], b.args[1]) if isinstance(base, int) and base > 1 else None


def _has_value(tree: Node) -> bool:
    """True if a constant has a value, as far as that is cheap to tell: 0/0 and infinity less infinity have none."""
    if any(n.op == "const" and n.args[0] not in {"pi", "e", "i"} for n in nodes(tree)):
        return False
    try:
        exact(tree, {})
    except Undefined:
        return False
    except (NotExact, TooBig):
        return True
    return True


def _is_expression(tree: Node) -> bool:
    if tree.op == "det":
        return all(_is_expression(cell) for row in tree.args[0].args for cell in row.args[2:])
    return all(n.op in COMPARABLE for n in nodes(tree))


def _wants_whole(tree: Node) -> bool:
    """True if a symbol is in a position in which only whole numbers make sense."""
    for n in nodes(tree):
        if n.op in {"fact", "binom", "perm"} and variables(n):
            return True
        if n.op == "pow" and variables(n.args[1]):
            base = n.args[0]
            if base.op == "num" and base.args[0] < 0:
                return True
    return False


def _source(a: Node, b: Node) -> random.Random:
    # Not hash(), which differs between processes: the same pair must get the same verdict everywhere.
    return random.Random(zlib.crc32(repr((a, b)).encode()))


def _agree(
    points: Iterable[dict[str, Exact]], enough: float, least: int, equal_at: Callable[[dict[str, Exact]], bool | None]
) -> bool | None:
    """True if the trees are equal at `enough` points, or at all and no fewer than `least`; None if undecided.

    Points at which the gold has no value are passed.
    """
    compared = 0
    for point in points:
        try:
            equal = equal_at(point)
        except Undefined:
            continue
        if not equal:
            return equal
        compared += 1
        if compared >= enough:
            return True
    return True if compared >= least else None


def _same_exactly(a: Node, b: Node, names: list[str], whole: bool) -> bool | None:
    """Compare exact rational values at as many points as the form of the trees asks for."""

    def equal_at(point: dict[str, Exact]) -> bool:
        wanted = exact(a, point)
        try:
            return wanted == exact(b, point)
        except Undefined:
            return False  # the answer has a hole where the gold has a value

    points, enough = _exact_points(a, b, names, whole) if names else ([{}], 1)
    return _agree(points, enough, enough, equal_at)


def _exact_points(a: Node, b: Node, names: list[str], whole: bool) -> tuple[Iterable[dict[str, Exact]], int]:
    """Return points for exact comparison, and the number of them at which the gold must have a value."""
    source = _source(a, b)
    if _is_broken(a, b):
        return _broken_points(source, names), NUM_BROKEN_POINTS
    small = whole or any(n.op == "pow" and variables(n.args[1]) for t in (a, b) for n in nodes(t))
    by_sign = len(names) > 1 and any(n.op == "abs" or n.args[:1] in EXTREMES for t in (a, b) for n in nodes(t))
    enough = NUM_WHOLE_POINTS if small else max(6, 2 ** min(len(names), 4)) if by_sign else NUM_EXACT_POINTS

    def points() -> Iterator[dict[str, Exact]]:
        for attempt in range(4 * max(enough, NUM_WHOLE_POINTS)):
            if small:
                yield {name: source.randint(3, 40) for name in names}
            else:
                # The bits of `attempt` go through all combinations of signs; without |x| all change sign together.
                signs = [-1 if attempt >> (k if by_sign else 0) & 1 else 1 for k in range(len(names))]
                yield {name: sign * source.randint(10**6, 10**7) for name, sign in zip(names, signs, strict=True)}

    return points(), enough


def _is_broken(a: Node, b: Node) -> bool:
    return any(has(t, "floor", "ceil") for t in (a, b))


def _broken_points(source: random.Random, names: list[str]) -> Iterator[dict[str, Exact]]:
    """Yield points for floor and ceiling: whole numbers in a row, and for names of any numbers what lies between."""
    for attempt in range(2 * NUM_BROKEN_POINTS):
        far = 10 ** (attempt % 4)
        point: dict[str, Exact] = {}
        for k, name in enumerate(names):
            if WHOLE_NAMES.fullmatch(name) and len(names) == 1:
                point[name] = attempt + 1 if attempt < NUM_BROKEN_POINTS - 4 else source.randint(1, 30 * far)
            elif WHOLE_NAMES.fullmatch(name):
                point[name] = source.randint(1, 30 * far)
            else:
                below = (1, 2, 97)[(attempt + k) % 3]
                point[name] = quotient(source.randint(-20 * far * below, 20 * far * below), below)
        yield point


def _same_in_bounds(a: Node, b: Node, names: list[str], whole: bool) -> bool | None:
    """Compare guaranteed bounds at points where the gold is defined."""
    is_complex = not names or any(IMAGINARY in nodes(t) for t in (a, b))
    if names and is_complex and has(a, "abs"):
        a, b = (_with_complex_names(t) for t in (a, b))  # |z - i| is not |z + i|
        names = sorted(variables(a) | variables(b))

    def equal_at(point: dict[str, Exact]) -> bool | None:
        return _same_here(a, b, point, is_complex)

    def equal_if_known(point: dict[str, Exact]) -> bool | None:
        try:
            return equal_at(point)
        except NotExact as exc:  # bounds do not tell a floor
            raise Undefined from exc

    source = _source(a, b)
    if not names:
        return _agree([{}], 1, 1, equal_at)
    if _is_broken(a, b):
        return _agree(_broken_points(source, names), NUM_BROKEN_POINTS, ENOUGH_BROKEN_POINTS, equal_if_known)
    points = _points(source, names, whole)
    if len(names) > 1 and not whole and any(has(t, "abs") for t in (a, b)):
        return _agree(_in_all_signs(points, names), math.inf, NUM_REAL_POINTS, equal_at)
    if len(names) > 1:
        # Formulas of several names are about lengths and amounts: sqrt(ab) is sqrt(a) sqrt(b) there.
        points = ({name: _positive(value) for name, value in point.items()} for point in points)
    return _agree(points, NUM_REAL_POINTS, NUM_REAL_POINTS, equal_at)


def _with_complex_names(tree: Node) -> Node:
    """Return the tree with x + iy in the place of z, and of w."""
    if tree.op == "sym" and COMPLEX_NAMES.fullmatch(tree.args[0]):
        return Node("add", (sym(f"{tree.args[0]}.re"), Node("mul", (IMAGINARY, sym(f"{tree.args[0]}.im")))))
    return with_children(tree, _with_complex_names)


def _in_all_signs(points: Iterator[dict[str, Exact]], names: list[str]) -> Iterator[dict[str, Exact]]:
    """Yield points with each name alone below zero, with all of them and with none, where |a| and a differ."""
    for below in [[], *([name] for name in names[:MAX_SIGNED_NAMES]), names, []]:
        yield {name: -_positive(v) if name in below else _positive(v) for name, v in next(points).items()}


def _positive(value: Exact) -> Exact:
    return -value if value < 0 else value


def _points(source: random.Random, names: list[str], whole: bool) -> Iterator[dict[str, Exact]]:
    """Yield points near zero first, then on other scales."""
    spans = [(0, 1), (1, 3), (-3, 0), (0, 1), (1, 3), (3, 9), (-1, 0), (-9, -3), (1, 9), (0, 3)]
    for low, high in [*spans, *spans]:
        if whole:
            yield {name: source.randint(3, 40) for name in names}
        else:
            yield {name: Fraction(source.randint(low * 10**6 + 1, high * 10**6 - 1), 10**6) for name in names}
    if whole:
        return
    for scale in SCALES:
        for low, high in spans[:4] if scale < 1 else spans[5:9]:
            yield {name: scale * Fraction(source.randint(low * 10**6 + 1, high * 10**6 - 1), 10**6) for name in names}


def _same_here(a: Node, b: Node, point: dict[str, Exact], is_complex: bool) -> bool | None:
    """Compare the values at a point.

    Bounds that part are a proof of difference; bounds that still meet when they are narrow enough count as equal.

    Raises: Undefined if the gold has no value there.
    """
    numbers = [n.args[0] for t in (a, b) for n in nodes(t) if n.op in {"num", "dec"}]
    digits = sum(int(abs(n.numerator).bit_length() + n.denominator.bit_length()) // 3 for n in numbers)
    precision = PRECISION
    for _ in range(4):
        gold = bounds(a, point, precision, is_complex)
        try:
            answer = bounds(b, point, precision, is_complex)
        except Undefined:
            return False
        apart = [libmp.mpi_sub(x, y, precision) for x, y in zip(gold[:2], answer[:2], strict=True)]
        if not all(map(is_zero_inside, apart)):
            return False
        size = max(map(magnitude, (*gold[:2], *answer[:2])))
        spread = max(magnitude((libmp.mpi_delta(x, precision),)) for x in apart)
        # Different values agree in few more bits than the expressions have: each digit adds at most log2(10) < 4, and
        # a large part of the calculation, such as the e^1000 in e^1000 + 1, may hide as many bits as it has.
        enough = MARGIN + 4 * digits + 2 * max(gold.extent, answer.extent)
        if precision >= enough and (spread < size - enough + 2 * MARGIN // 3 or spread < -ZERO_BITS):
            return True
        # Bounds that are still wide come from cancellation, whose depth is unknown: go faster there.
        precision = max(2 * precision, enough + 64) if spread < size - 40 else 5 * precision
        if precision > MAX_PRECISION:
            return None
    return None


@lru_cache(maxsize=4_096)
def approximate(tree: Node) -> float | None:
    """Return a constant's real value as a float, None if it has none; for ordering only, never for equality.

    It costs a decision nothing: whether the value is known already is no matter of the decision.
    """
    return BUDGET.within(math.inf, _approximate, tree)


def _approximate(tree: Node) -> float | None:
    try:
        return float(exact(tree, {}))
    except (Undefined, TooBig, OverflowError):
        return None
    except NotExact:
        near = _real_bounds(tree)
    if near is None:
        return None
    try:
        return float(libmp.to_float(near[0]))
    except OverflowError:
        return -math.inf if near[0][0] else math.inf


def within(tree: Node, low: Fraction, high: Fraction) -> bool:
    """True if the constant `tree` is a real number with low <= value < high."""
    above, below = (_real_bounds(difference(tree, num(end))) for end in (low, high))
    if above is None or below is None:
        return False
    return bool(libmp.mpf_sign(above[0]) >= 0 > libmp.mpf_sign(below[1]))


def _real_bounds(tree: Node) -> Mpi | None:
    try:
        near = bounds(tree, {}, PRECISION, False)
    except (NotExact, TooBig, Undefined):
        return None
    return near.re if near.im == ZERO else None
