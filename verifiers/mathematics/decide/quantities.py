"""Numbers with a unit, a currency, a percent or degree sign or a counted noun; and rounded numbers."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from verizero.verifiers.mathematics.decide.equality import same, within
from verizero.verifiers.mathematics.read.syntax_tree import ONE, PI, Node, collected, has, neg, nodes, num
from verizero.verifiers.mathematics.words.nouns import NOT_NOUNS, only_counts, stem
from verizero.verifiers.mathematics.words.vocabulary import (
    CUBED,
    INVERSE,
    SQUARED,
    UNITS,
    Dimension,
    Unit,
    times,
    words_of,
)

MARKS = ("word", "money", "percent", "deg")
MAX_EXACT_DENOMINATOR = 20
"""A decimal such as 0.75 or 2.35 that is a fraction this simple is taken for exact."""
MAX_PLACES = 400
MOST_ROUNDED = Fraction(1, 10)
"""Share of a value that may be lost where the gold itself says that it is rounded."""
CURRENCY = frozenset(((name, 1),) for name in words_of("dollar euro pound yen yuan rupee peso ruble"))
"""Dimensions of money: $18 USD states it twice."""
POUND_STERLING: Dimension = (("pound", 1),)
OF_WHAT = re.compile(r"of (?:the |all |its |their )?[a-z]+(?: [a-z]+)?")
ONE_DEGREE = Node("div", (PI, num(180)))
PER = words_of("per a an each every")


def scale_node(unit: Unit) -> Node:
    """Return the factor to the basic unit: rational, times pi for angles that are parts of a turn."""
    return Node("mul", (num(unit.scale), PI)) if unit.turns else num(unit.scale)


POUND_OF_MASS = scale_node(UNITS["pounds"])
"""The scale of "15 pounds", which answers £15."""


class Quantity(NamedTuple):
    """A number with its unit."""

    raw: Node
    """The number as written before the unit."""
    scale: Node
    """The factor to basic units."""
    dimension: Dimension = ()
    counted: str = ""
    """The words behind the number if they are no known unit."""
    is_percent: bool = False

    @property
    def has_unit(self) -> bool:
        """True if a unit, a currency or a counted thing was stated."""
        return bool(self.dimension or self.counted)

    @property
    def value(self) -> Node:
        """Return the value in basic units."""
        return self.raw if self.scale == ONE else Node("mul", (self.raw, self.scale))


def quantity(tree: Node, symbols_are_units: bool = False) -> Quantity | None:
    """Return the tree as a number with its unit; None if it has words that are no unit of the whole.

    With `symbols_are_units`, single letters such as m and s are units too.
    """
    if not has(tree, *MARKS) and not symbols_are_units:
        return Quantity(tree, ONE)
    if tree.op == "add":
        return _compound(tree, symbols_are_units)
    if tree.op == "neg":
        inner = quantity(tree.args[0], symbols_are_units)
        return None if inner is None else inner._replace(raw=neg(inner.raw))
    return _Reader(symbols_are_units).read(tree)


def _compound(tree: Node, symbols_are_units: bool) -> Quantity | None:
    """Return a sum such as 1 h 30 min, or one without any unit but angles and percents inside."""
    if not has(tree, "word", "money") and not symbols_are_units:
        return Quantity(tree, ONE)
    parts = [quantity(a, symbols_are_units) for a in tree.args]
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    if len({(p.dimension, p.counted) for p in known}) > 1:
        # The unit behind 2 + 3 cm belongs to the whole sum.
        last = known[-1]
        if any(p.has_unit or p.is_percent for p in known[:-1]):
            return None
        return last._replace(raw=Node("add", tuple(p.raw for p in known)))
    return Quantity(Node("add", tuple(p.value for p in known)), ONE, known[0].dimension, known[0].counted)


class _Reader:
    """A reader that takes the units out of a product and collects the rest as the number."""

    def __init__(self, symbols_are_units: bool) -> None:
        self.symbols_are_units = symbols_are_units
        self.factors: list[Node] = []
        self.scales: list[Node] = []
        self.dimension: Dimension = ()
        self.counted: list[str] = []
        self.is_percent = False
        self.last: tuple[Dimension, Node | None, int] = ((), None, 1)
        """Dimension, scale and power of the unit that was read last, which "squared" raises."""

    def read(self, tree: Node) -> Quantity | None:
        """Return the quantity; None if there is no number, or a word that is neither a unit nor counted."""
        if not self.take(tree, 1) or (self.counted and self.dimension) or not self.factors:
            return None
        if self.last[0] and not self.dimension:
            return None  # units that cancel, m/m, are no unit that was left out
        scale = collected("mul", self.scales) if self.scales else ONE
        counted = " ".join(self.counted)
        return Quantity(collected("mul", self.factors), scale, self.dimension, counted, self.is_percent)

    def take(self, tree: Node, power: int) -> bool:
        """Take the tree, which is raised to `power`, apart; False if a word in it is no unit."""
        op = tree.op
        if op == "mul":
            return all(self.take(a, power) for a in tree.args)
        if op == "div" and (has(tree, *MARKS) or self.symbols_are_units):
            if power == 1 and self.symbols_are_units and not has(tree.args[1], *MARKS, "sym"):
                self.factors.append(tree)  # m/2 is a formula, m/s a unit
                return not has(tree.args[0], *MARKS)
            return self.take(tree.args[0], power) and self.take(tree.args[1], -power)
        if op == "pow" and tree.args[0].op in {"word", "sym"} and tree.args[1].op == "num":
            exponent = tree.args[1].args[0]
            return isinstance(exponent, int) and 0 < abs(exponent) < 5 and self.unit(tree.args[0], power * exponent)
        if op == "word" or (op == "sym" and self.symbols_are_units):
            return self.unit(tree, power)
        return self.mark(tree, power)

    def mark(self, tree: Node, power: int) -> bool:
        """Take money, a percent or degree sign, or a factor without any of them."""
        if tree.op == "money" and power == 1:
            return self.unit(Node("word", (tree.args[0],)), 1) and self.take(tree.args[1], 1)
        if tree.op == "percent" and power == 1:
            self.is_percent = True
            self.scales.append(num(Fraction(1, 100)))
            return self.take(tree.args[0], 1)
        if tree.op == "deg" and power == 1:
            self.scales.append(ONE_DEGREE)
            self.last = ((("angle", 1),), ONE_DEGREE, 1)
            self.dimension = times(self.dimension, self.last[0])
            return self.take(tree.args[0], 1)
        if has(tree, "word", "money"):
            return False
        self.factors.append(tree if power == 1 else Node("pow", (tree, num(power))))
        return True

    def unit(self, tree: Node, power: int) -> bool:
        """Take the phrase of a word node, or the letter of a symbol, as a unit to the given power."""
        words = str(tree.args[0]).replace("-", " ").split()
        sign, next_power = 1, 1
        for i, word in enumerate(words):
            lower = word.lower()
            if lower == "per" or (lower in PER and i + 1 < len(words)):
                sign = -1
            elif lower in SQUARED or lower in CUBED:
                step = 2 if lower in SQUARED else 3
                if lower.endswith("ed"):  # "cm squared" raises the unit before, "square cm" the unit behind
                    if not self.dimension:
                        return False
                    self.again(step - 1)
                else:
                    next_power = step
            elif lower == "of" and self.dimension and i:
                return only_counts(" ".join(words[i + 1 :]) + "s")  # 5 litres of milk
            else:
                known = UNITS.get(word) or (UNITS.get(lower) if len(lower) > 1 else None)
                if known is None:
                    return tree.op == "word" and abs(power) == 1 and self.noun(words[i:], sign)
                total = power * sign * next_power
                if known.dimension == self.dimension and known.dimension in CURRENCY:
                    continue  # $18 USD
                self.dimension = times(self.dimension, known.dimension, total)
                self.last = (known.dimension, scale_node(known) if known.scale != 1 or known.turns else None, total)
                self.scaled(total)
                next_power = 1
        return next_power == 1

    def scaled(self, power: int) -> None:
        """Count the scale of the last unit in, to the given power."""
        scale = self.last[1]
        if scale is not None:
            self.scales.append(scale if power == 1 else Node("pow", (scale, num(power))))

    def again(self, more: int) -> None:
        """Raise the last unit further: "cm squared", "per second squared"."""
        dimension, _, power = self.last
        self.dimension = times(self.dimension, dimension, more * power)
        self.scaled(more * power)

    def noun(self, words: list[str], sign: int) -> bool:
        """Take words that are no unit as counted things, or behind "per" as a dimension of their own."""
        if sign < 0 and self.dimension:
            self.dimension = times(self.dimension, ((" ".join(stem(w) for w in words), -1),))
            return True
        if words == ["old"] and self.dimension:
            return True  # 5 years old
        self.counted += words
        return True


def quantities_equal(gold: Quantity, answer: Quantity) -> bool | None:
    """True if two quantities are equal by the policy; None if undecided."""
    if gold.is_percent or answer.is_percent:
        return _percents_equal(gold, answer)
    if gold.has_unit and answer.has_unit:
        if gold.counted or answer.counted:
            return _same_things(gold.counted, answer.counted) and numbers_equal(gold.raw, answer.raw)
        if gold.dimension == POUND_STERLING and answer.dimension == (("mass", 1),) and answer.scale == POUND_OF_MASS:
            return numbers_equal(gold.raw, answer.raw)
        if gold.dimension != answer.dimension:
            return False
        if gold.scale == answer.scale:
            return numbers_equal(gold.raw, answer.raw)
        in_gold_units = Node("div", (answer.value, gold.scale))
        return numbers_equal(gold.raw, in_gold_units, gold.value, answer.value)
    if gold.has_unit or answer.has_unit:
        return _one_unit_equal(gold, answer)
    return numbers_equal(gold.raw, answer.raw)


def _one_unit_equal(gold: Quantity, answer: Quantity) -> bool | None:
    """Compare where only one side states a unit, which may be left out; radians may not be read as degrees."""
    stated, bare = (gold, answer) if gold.has_unit else (answer, gold)
    if stated.dimension == (("angle", 1),) and any(n == PI or n.args[0] in INVERSE for n in nodes(bare.raw) if n.args):
        return same(gold.value, answer.value)
    if stated.counted and not only_counts(stated.counted):
        return False
    return numbers_equal(gold.raw, answer.raw)


def _percents_equal(gold: Quantity, answer: Quantity) -> bool | None:
    """Compare where a side is a percentage: 35 and 0.35 answer 35%, and 35% answers 35 and 0.35."""
    if gold.dimension or answer.dimension or (answer.counted and not OF_WHAT.fullmatch(answer.counted)):
        return False
    if gold.is_percent and answer.is_percent:
        return numbers_equal(gold.raw, answer.raw)
    if gold.is_percent:
        if numbers_equal(gold.raw, answer.raw):
            return True
        return numbers_equal(gold.raw, Node("mul", (answer.raw, num(100))), gold.value, answer.raw)
    # A gold from -1 to 1 is a fraction: 35% answers it as 0.35 only, and 0.35% must not answer 0.35.
    equal = same(gold.raw, answer.value)
    if equal or within(gold.raw, Fraction(-1), Fraction(1, 10**12) + 1):
        return equal
    return numbers_equal(gold.raw, answer.raw)


def _same_things(gold: str, answer: str) -> bool:
    """True if a phrase has the nouns of the other, and closer words that deny nothing: apples and red apples."""
    wanted, reached = ({stem(w) for w in phrase.split()} for phrase in (gold, answer))
    nested = wanted <= reached or reached <= wanted
    return bool(wanted and reached) and nested and not NOT_NOUNS.intersection(wanted ^ reached)


def numbers_equal(
    gold: Node, answer: Node, exact_gold: Node | None = None, exact_answer: Node | None = None
) -> bool | None:
    """True if two numbers are the same, or the gold is a decimal that the answer rounds to; None if undecided."""
    equal = same(exact_gold or gold, exact_answer or answer)
    if equal:
        return equal
    shown = _decimal(gold)
    return True if shown is not None and _rounds_to(shown[0], shown[1], answer) else equal


def _decimal(tree: Node) -> tuple[Fraction, int] | None:
    """Return (value, places shown) of a decimal, also in scientific notation; None if the tree is no decimal."""
    if tree.op == "dec":
        return Fraction(tree.args[0]), tree.args[1]
    if tree.op == "neg":
        inner = _decimal(tree.args[0])
        return None if inner is None else (-inner[0], inner[1])
    if tree.op == "mul" and len(tree.args) == 2 and tree.args[1].op == "pow":
        base, exponent = tree.args[1].args
        inner = _decimal(tree.args[0])
        if inner is not None and base == num(10) and exponent.op == "num" and isinstance(exponent.args[0], int):
            power = exponent.args[0]
            if abs(power) < MAX_PLACES:
                return inner[0] * Fraction(10) ** power, inner[1] - power
    return None


def _rounds_to(value: Fraction, places: int, answer: Node) -> bool:
    """True if the answer rounds, half up, to `value` shown with `places` decimals, where that may be rounded at all."""
    if abs(places) > MAX_PLACES:
        return False
    unit = Fraction(10) ** -places
    # Two decimals or three digits are needed: 0.3 and 12 are rather exact values than rounded ones. A single digit,
    # as in 0.01, would take in what is half as large again.
    digits = len(str(abs(value / unit).numerator))
    if digits < 2 or (places < 2 and digits < 3):
        return False
    shown = _decimal(answer)
    is_padded = places > 2 and (value / unit).numerator % 10 == 0  # 19.900, but not the 12.50 of money
    is_simple = value.denominator <= MAX_EXACT_DENOMINATOR and value.denominator < 10**places and not is_padded
    if is_simple and shown is not None and shown[1] < places + 2:
        return False  # 0.75 may be exactly three quarters; only two more decimals, 0.7512, show that it was rounded
    if value < 0:
        return _rounds_to(-value, places, neg(answer))
    return within(answer, value - unit / 2, value + unit / 2)


def explicitly_rounded(gold: Node, answer: Node) -> bool:
    """True if the answer rounds to a gold that itself says that it is approximate, whatever its digits."""
    shown = _decimal(gold) or ((Fraction(gold.args[0]), 0) if gold.op == "num" else None)
    if shown is None:
        return False
    # Half a unit of the last digit, but no more than a tenth of the value.
    most = min(Fraction(10) ** -shown[1] / 2, abs(shown[0]) * MOST_ROUNDED)
    return within(answer, shown[0] - most, shown[0] + most)
