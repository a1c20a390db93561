"""Whether two expressions are the same function: equal trees, exact rational values, then guaranteed bounds.

Free symbols are tried at points drawn from the texts of both sides, so that the same pair always meets the same points
and no answer can be written to fit them beforehand.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

from verifiers.mathematics.decide import interval
from verifiers.mathematics.decide.elementary import is_zero_inside, magnitude
from verifiers.mathematics.decide.exact import Exact, NotExact, TooBig, Undefined, exact
from verifiers.mathematics.read.syntax_tree import EXPRESSION, Node, nodes, variables

NUM_EXACT_POINTS = 2
NUM_WHOLE_POINTS = 6
"""Where a symbol must be a whole number (n!, (-1)^n), small ones are tried."""
NUM_REAL_POINTS = 3
NUM_BROKEN_POINTS = 10
"""Where values are rounded to whole ones, near zero and WIDE times as far from it in turn."""
WIDE = 37
SCALES = (Fraction(1, 10), Fraction(1, 100), Fraction(10), Fraction(100), Fraction(1_000))
"""Where else points are drawn: a function may be defined only close to zero, or only far from it."""
MAX_SIGNED_NAMES = 6
BY_SIGN = frozenset({"abs", "floor", "ceil"})
"""What tells a formula of several names, which are taken to be positive, apart below zero."""
PRECISION = 160
MAX_PRECISION = 16_000
MARGIN = 192
"""Bits in which unequal values must not agree, beyond those of their digits and of their largest parts."""
ZERO_BITS = 1_200
"""A difference below 2^-1200 that shrinks with the precision is zero."""


def same(a: Node, b: Node) -> bool | None:
    """Whether `a` equals `b` for all values of their symbols; None if that could not be decided.

    `a` is the gold: where it is defined (as a real number) `b` must be too.
    """
    if a == b:
        return True
    if not (_is_expression(a) and _is_expression(b)):
        return False if _is_expression(a) or _is_expression(b) else None
    names = sorted(variables(a) | variables(b))
    whole = bool(names) and (_wants_whole(a) or _wants_whole(b))
    try:
        return _same_exactly(a, b, names, whole)
    except NotExact:
        pass
    except Undefined:
        return False if _has_value(a) else None
    except TooBig:
        if not names:
            return _same_powers(a, b)
    try:
        return _same_at_points(a, b, names, whole)
    except (NotExact, TooBig, Undefined):
        return False if not names and _has_value(a) and not _has_value(b) else None


def _same_powers(a: Node, b: Node) -> bool | None:
    """Whether two powers too big to be worked out are the same: b^x is b^y, for a whole b above 1, where x is y."""
    if not a.op == b.op == "pow" or a.args[0] != b.args[0] or a.args[0].op != "num":
        return None
    base = a.args[0].args[0]
    return same(a.args[1], b.args[1]) if isinstance(base, int) and base > 1 else None


def _has_value(tree: Node) -> bool:
    """Whether a constant has a value, as far as that is cheap to tell: 0/0 and infinity less infinity have none."""
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
    return all(n.op in EXPRESSION and n.op not in {"word", "call", "money", "pm", "mp"} for n in nodes(tree))


def _wants_whole(tree: Node) -> bool:
    """Whether a symbol stands where only whole numbers make sense."""
    for n in nodes(tree):
        if n.op in {"fact", "binom", "perm"} and variables(n):
            return True
        if n.op == "pow" and variables(n.args[1]):
            base = n.args[0]
            if base.op == "num" and base.args[0] < 0:
                return True
    return False


def _depends_on_signs(a: Node, b: Node) -> bool:
    return any(n.op in BY_SIGN for t in (a, b) for n in nodes(t))


def _source(a: Node, b: Node) -> random.Random:
    return random.Random(zlib.crc32(repr((a, b)).encode()))


def _same_exactly(a: Node, b: Node, names: list[str], whole: bool) -> bool:
    if not names:
        return exact(a, {}) == exact(b, {})
    source = _source(a, b)
    broken = any(n.op in {"floor", "ceil"} for t in (a, b) for n in nodes(t))
    small = whole or any(n.op == "pow" and variables(n.args[1]) for t in (a, b) for n in nodes(t))
    by_sign = len(names) > 1 and _depends_on_signs(a, b)
    enough = NUM_WHOLE_POINTS if small else max(6, 2 ** min(len(names), 4)) if by_sign or broken else NUM_EXACT_POINTS
    compared = 0
    for attempt in range(4 * max(enough, NUM_WHOLE_POINTS)):
        point: dict[str, Exact]
        if small:
            point = {name: source.randint(3, 40) for name in names}
        else:
            signs = [-1 if attempt >> (k if by_sign else 0) & 1 else 1 for k in range(len(names))]
            below = (997, 1, 2)[attempt % 3] if broken else 1
            values = [Fraction(source.randint(10**6, 10**7), below) for _ in names]
            point = {name: sign * value for name, sign, value in zip(names, signs, values, strict=True)}
            point = {name: v.numerator if v.denominator == 1 else v for name, v in point.items()}
        try:
            wanted = exact(a, point)
        except Undefined:
            continue
        try:
            if wanted != exact(b, point):
                return False
        except Undefined:
            return False
        compared += 1
        if compared >= enough:
            return True
    raise NotExact


def _same_at_points(a: Node, b: Node, names: list[str], whole: bool) -> bool | None:
    is_complex = not names or any(n.op == "const" and n.args[0] == "i" for t in (a, b) for n in nodes(t))
    by_sign = len(names) > 1 and not whole and _depends_on_signs(a, b)
    compared = 0
    broken = any(n.op in {"floor", "ceil"} for t in (a, b) for n in nodes(t))
    enough = NUM_BROKEN_POINTS if broken else NUM_REAL_POINTS
    points = _points(_source(a, b), names, whole, WIDE if broken else 1)
    if by_sign:
        points = _in_all_signs(points, names)
    elif len(names) > 1:
        points = ({name: _positive(value) for name, value in point.items()} for point in points)
    for point in points:
        try:
            interval.bounds(a, point, 64, is_complex)
        except Undefined:
            continue
        equal = _same_here(a, b, point, is_complex)
        if not equal:
            return equal
        compared += 1
        if (compared >= enough and not by_sign) or not names:
            return True
    return True if by_sign and compared >= NUM_REAL_POINTS else None


def _in_all_signs(points: Iterator[dict[str, Exact]], names: list[str]) -> Iterator[dict[str, Exact]]:
    """Points with each name alone below zero, all of them and none: what |a| and a have apart shows there."""
    for below in [[], *([name] for name in names[:MAX_SIGNED_NAMES]), names, []]:
        yield {name: -_positive(v) if name in below else _positive(v) for name, v in next(points).items()}


def _positive(value: Exact) -> Exact:
    return -value if value < 0 else value


def _points(source: random.Random, names: list[str], whole: bool, wide: int) -> Iterator[dict[str, Exact]]:
    if not names:
        yield {}
        return
    spans = [(0, 1), (1, 3), (-3, 0), (0, 1), (1, 3), (3, 9), (-1, 0), (-9, -3), (1, 9), (0, 3)]
    for number, (low, high) in enumerate([*spans, *spans]):
        far = wide if number % 2 else 1
        if whole:
            yield {name: source.randint(3, 40) for name in names}
        else:
            yield {name: Fraction(far * source.randint(low * 10**6 + 1, high * 10**6 - 1), 10**6) for name in names}
    if whole:
        return
    for scale in SCALES:
        for low, high in spans[:4] if scale < 1 else spans[5:9]:
            yield {name: scale * Fraction(source.randint(low * 10**6 + 1, high * 10**6 - 1), 10**6) for name in names}


def _same_here(a: Node, b: Node, point: dict[str, Exact], is_complex: bool) -> bool | None:
    """Whether the values at one point are equal: bounds that part say no, ones that meet when made narrow say yes."""
    digits = sum(_digits(n) for t in (a, b) for n in nodes(t))
    precision = PRECISION
    for _ in range(4):
        try:
            said, gold = (
                interval.bounds(b, point, precision, is_complex),
                interval.bounds(a, point, precision, is_complex),
            )
        except Undefined:
            return False
        apart = interval.difference(gold, said, precision)
        parts = [p for p in (apart.re, apart.im) if p is not None]
        if not all(is_zero_inside(p) for p in parts):
            return False
        size = max(magnitude(p) for value in (gold, said) for p in (value.re, value.im) if p is not None)
        spread = max(interval.width(p, precision) for p in parts)
        enough = MARGIN + 4 * digits + 2 * max(gold.extent, said.extent)
        if precision >= enough and (spread < size - enough + 2 * MARGIN // 3 or spread < -ZERO_BITS):
            return True
        precision = max(2 * precision, enough + 64) if spread < size - 40 else 5 * precision
        if precision > MAX_PRECISION:
            return None
    return None


def _digits(node: Node) -> int:
    if node.op not in {"num", "dec"}:
        return 0
    return int(abs(node.args[0].numerator).bit_length() + node.args[0].denominator.bit_length()) // 3


@lru_cache(maxsize=4_096)
def approximate(tree: Node) -> float | None:
    """A constant's real value as a float, None if it has none; for ordering only, never for equality."""
    try:
        return float(exact(tree, {}))
    except NotExact:
        pass
    except (Undefined, TooBig, OverflowError):
        return None
    try:
        found = interval.bounds(tree, {}, PRECISION, False)
    except (NotExact, TooBig, Undefined):
        return None
    return interval.middle(found.re)


def within(tree: Node, low: Fraction, high: Fraction) -> bool:
    """Whether the constant `tree` is a real number with low <= value < high."""
    try:
        value = exact(tree, {})
        return low <= value < high
    except NotExact:
        pass
    except (Undefined, TooBig):
        return False
    try:
        found = interval.bounds(tree, {}, PRECISION, False)
    except (NotExact, TooBig, Undefined):
        return False
    return interval.lower(found.re) >= low and interval.upper(found.re) < high
