"""Equality of expressions against slow doubles: fractions, floats, high precision and membership of points."""

import random
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verizero.verifiers.mathematics import grade, score
from verizero.verifiers.mathematics.decide import evaluation
from verizero.verifiers.mathematics.decide.equality import same
from verizero.verifiers.mathematics.decide.evaluation import (
    BUDGET,
    MAX_BITS,
    NotExact,
    OverBudget,
    TooBig,
    Undefined,
    bounds,
    exact,
)
from verizero.verifiers.mathematics.decide.regions import same_region
from verizero.verifiers.mathematics.read.parser import parse
from verizero.verifiers.mathematics.read.syntax_tree import Node

LEAVES = st.integers(-30, 30).map(lambda n: (f"({n})", Fraction(n)))


def _joined(pair):
    (a, x), sign, (b, y) = pair
    text = f"\\frac{{{a}}}{{{b}}}" if sign == "/" else f"({a}{sign}{b})"
    if x is None or y is None or (sign == "/" and y == 0):
        return text, None
    return text, {"+": x + y, "-": x - y, "\\cdot ": x * y, "/": x / y if y else None}[sign]


SUMS = st.recursive(
    LEAVES,
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "\\cdot ", "/"]), inner).map(_joined),
    max_leaves=8,
)


@given(SUMS)
def test_arithmetic_is_that_of_fractions(case):
    text, value = case
    if value is None:
        with pytest.raises(Undefined):
            exact(parse(text), {})
    else:
        assert exact(parse(text), {}) == value
        assert same(parse(text), Node("num", (value + 1,))) is False


REALS = [
    (r"\sqrt{2}", lambda: mpmath.sqrt(2)),
    (r"\sin 1", lambda: mpmath.sin(1)),
    (r"\cos\frac{\pi}{7}", lambda: mpmath.cos(mpmath.pi / 7)),
    (r"\tan 2", lambda: mpmath.tan(2)),
    (r"\ln 3", lambda: mpmath.log(3)),
    (r"\log_2 3", lambda: mpmath.log(3, 2)),
    (r"\arcsin\frac{1}{3}", lambda: mpmath.asin(mpmath.mpf(1) / 3)),
    (r"\arccos 0.2", lambda: mpmath.acos(mpmath.mpf(1) / 5)),
    (r"\arctan 5", lambda: mpmath.atan(5)),
    (r"\sinh 2", lambda: mpmath.sinh(2)),
    (r"\tanh 2", lambda: mpmath.tanh(2)),
    (r"e^{\pi}", lambda: mpmath.exp(mpmath.pi)),
    (r"2^{\sqrt{3}}", lambda: mpmath.mpf(2) ** mpmath.sqrt(3)),
    (r"\sqrt[3]{-5}", lambda: -mpmath.cbrt(5)),
    (r"\cot 1", lambda: mpmath.cot(1)),
    (r"\sec 40^\circ", lambda: mpmath.sec(mpmath.pi * 2 / 9)),
    (r"|1-\sqrt{5}|", lambda: mpmath.sqrt(5) - 1),
]


@pytest.mark.parametrize(("text", "value"), REALS)
@pytest.mark.parametrize("precision", [60, 300])
def test_bounds_hold_the_value_and_are_narrow(text, value, precision):
    with mpmath.workprec(1_000):
        number = value()
        wanted = Fraction(int(mpmath.floor(number * mpmath.mpf(2) ** 900)), 2**900)
    low, high = (Fraction(*mpmath.libmp.to_rational(end)) for end in bounds(parse(text), {}, precision, False).re)
    tiny = Fraction(1, 2**850)
    assert low <= wanted + tiny
    assert high >= wanted - tiny
    assert high - low < Fraction(1, 2 ** (precision - 12))


EQUAL = [
    (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
    (r"\sqrt[3]{2+\sqrt5}+\sqrt[3]{2-\sqrt5}", "1"),
    (r"\cos 20^\circ\cos 40^\circ\cos 80^\circ", r"\frac18"),
    (r"e^{i\pi}", "-1"),
    (r"(1+i)^8", "16"),
    (r"\sin(x+y)", r"\sin x\cos y+\cos x\sin y"),
    (r"\frac{x^3-1}{x-1}", "x^2+x+1"),
    (r"\binom{n}{2}+n", r"\frac{n(n+1)}{2}"),
    (r"(-1)^{n}", r"\cos(n\pi)"),
    (r"\sqrt{x^2}", "|x|"),
    (r"\ln(x^2)", r"2\ln|x|"),
    (r"\sin\pi", "0"),
    (r"a^{2b}", r"(a^b)^2"),
]
DIFFERENT = [
    (r"\frac{1}{3^{80}}", r"\frac{1}{3^{81}}"),
    (r"e^{\pi\sqrt{163}}", "262537412640768744"),
    (r"\tanh(100)", "1"),
    (r"\tanh(2000)", "1"),
    (r"\pi", r"\frac{355}{113}"),
    (r"\pi+e^{-400}", r"\pi"),
    ("x^2", "x^2+10^{-40}"),
    (r"\sqrt{x^2}", "x"),
    (r"|x|", "x"),
    (r"\lfloor x\rfloor", "x"),
    (r"\sin x", "x"),
    (r"x^{10}", r"x^{11}"),
    ("42+x-y", "42"),
    (r"e^{1000}+1", r"e^{1000}"),
]


@pytest.mark.parametrize(("a", "b"), EQUAL)
def test_identities(a, b):
    assert same(parse(a), parse(b)) is True


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_near_identities_are_told_apart(a, b):
    assert same(parse(a), parse(b)) is False
    assert same(parse(b), parse(a)) is False


@pytest.mark.parametrize("text", ["9^{9^{9^9}}", "(10^9)!", r"\binom{10^9}{10^8}", "(2^{50000})^{3}", "((5!)!)!"])
def test_budgets_are_checked_before_anything_is_computed(text):
    with pytest.raises((TooBig, NotExact)):
        exact(parse(text), {})
    assert same(parse("42"), parse(text)) is not True
    assert MAX_BITS < 100_000


@settings(max_examples=60)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=5), st.lists(st.integers(-4, 4), min_size=1, max_size=5))
def test_polynomials_are_equal_when_their_coefficients_are(a, b):
    def text(coefficients):
        return "+".join(f"({c})x^{{{i}}}" for i, c in enumerate(coefficients))

    def stripped(coefficients):
        while coefficients and not coefficients[-1]:
            coefficients = coefficients[:-1]
        return coefficients

    assert same(parse(text(a)), parse(text(b))) is (stripped(a) == stripped(b))


PIECE = st.tuples(st.integers(-5, 4), st.integers(1, 3), st.booleans(), st.booleans()).map(
    lambda p: (p[0], p[0] + p[1], p[2], p[3])
)


@pytest.mark.run
@settings(max_examples=150)
@given(st.lists(PIECE, min_size=1, max_size=3), st.lists(PIECE, min_size=1, max_size=3))
def test_unions_of_intervals_are_equal_when_they_hold_the_same_points(a, b):
    def holds(pieces, x):
        return any(lo < x < hi or (x == lo and left) or (x == hi and right) for lo, hi, left, right in pieces)

    def text(pieces):
        return "\\cup".join(f"{'[' if left else '('}{lo},{hi}{']' if r else ')'}" for lo, hi, left, r in pieces)

    points = [Fraction(k, 2) for k in range(-12, 17)]
    assert same_region(parse(text(a)), parse(text(b))) is all(holds(a, x) is holds(b, x) for x in points)


def test_the_same_pair_always_meets_the_same_points():
    source = random.Random(3)
    random.seed(source.random())
    first = [same(parse(a), parse(b)) for a, b in EQUAL + DIFFERENT]
    random.seed(source.random())
    assert [same(parse(a), parse(b)) for a, b in EQUAL + DIFFERENT] == first


def test_a_decision_has_one_budget_of_work_for_all_its_parts(monkeypatch):
    factorials = [f"{2900 + i}!" for i in range(40)]
    reasons = [grade("\\boxed{1!, 2!}", ", ".join(factorials[:n])).reason for n in (2, 40)]
    assert [reason.partition(": ")[2].startswith("too much work") for reason in reasons] == [False, True]
    one = parse("\\sin(1)")
    with pytest.raises(OverBudget):
        BUDGET.within(1_000, bounds, one, {}, 160, False)
    roots = parse("+".join(f"\\sqrt[3]{{7^{{21000}}+{n}}}" for n in range(1, 7)))
    with pytest.raises(OverBudget):  # for roots that are tried and are not rational
        BUDGET.within(4_000_000, bounds, roots, {}, 160, False)
    powers = parse("+".join(f"7^{{{20_000 + n}}}" for n in range(60)))
    BUDGET.within(2_000_000, bounds, powers, {}, 160, False)  # the first ones are exact, and bounds of others taken
    monkeypatch.setattr(evaluation, "LOOK", 0)
    monkeypatch.setattr(evaluation, "NET_CPU_S", -1.0)
    verdict = score([("\\boxed{\\sin(2)}", "\\sin(1)")])[0]
    assert (verdict.status, verdict.reason.partition(";")[0]) == (
        "verifier_error",
        "a decision took over -1 s of CPU time",
    )


def test_powers_of_too_many_digits_are_wrong_without_a_question_to_the_algebra():
    for text in ("10^{10^7}", "\\sinh(10^{10^8})", "2^{2^{2^{2^{2^2}}}}"):
        assert grade(f"\\boxed{{{text}}}", "\\int_0^1 x^2 dx").status == "graded"
