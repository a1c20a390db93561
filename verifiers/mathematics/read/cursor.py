"""The reader of tokens: its place among them, and what comes next."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from verizero.verifiers.mathematics.read.lexer import CLOSING, OPENING, Token, Unreadable
from verizero.verifiers.mathematics.read.syntax_tree import Node, has, num, sym, variables
from verizero.verifiers.mathematics.words.vocabulary import words_of

MAX_DEPTH = 48
"""Levels of the grammar. Python's own recursion limit is far above, so that hostile nesting cannot reach it."""
END = Token("end", "", False)


class Cursor:
    """Tokens and the position of the next token."""

    __slots__ = ("at", "bars", "bracketed", "building", "depth", "functions", "tokens")

    def __init__(
        self, tokens: list[Token], bracketed: Callable[[Cursor], Node | None], functions: frozenset[str] = frozenset()
    ) -> None:
        # Rules look up to three tokens ahead of the last one by plain indexing.
        self.tokens = [*tokens, END, END, END]
        self.at = 0
        self.depth = 0
        self.bars = 0
        """Number of open |: inside, a | closes."""
        self.building = 0
        """Number of open sets: inside, a | or : starts the condition."""
        self.functions = functions
        """Letters that name a function, so that a bracket behind them holds its arguments."""
        self.bracketed = bracketed
        """The reader of brackets, sets and matrices. The parser passes it in, as it imports the rules that call it."""

    def peek(self, ahead: int = 0) -> Token:
        """Return the token `ahead` positions from here; the end repeats."""
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else END

    def is_op(self, *values: str) -> bool:
        """True if the next token is one of these operators."""
        token = self.tokens[self.at]
        return token.kind == "op" and token.value in values

    def is_cmd(self, *values: str) -> bool:
        """True if the next token is one of these commands."""
        token = self.tokens[self.at]
        return token.kind == "cmd" and token.value in values

    def take(self) -> Token:
        """Pass the next token and return it."""
        token = self.peek()
        self.at += 1
        return token

    def take_op(self, *values: str) -> Any:
        """Pass the next token if it is one of these operators and return its value; return None if it is not."""
        token = self.tokens[self.at]
        if token.kind != "op" or token.value not in values:
            return None
        self.at += 1
        return token.value

    def expect(self, *values: str) -> str:
        """Pass one of these operators and return it. Raises: Unreadable if the next token is something else."""
        if not self.is_op(*values):
            raise Unreadable(f"expected {' or '.join(values)}, found {self.peek().value!r}")
        return str(self.take().value)

    def closing(self) -> int:
        """Return the position of the bracket that closes the one which comes next, or of the end."""
        depth = 0
        for at in range(self.at, len(self.tokens) - 1):
            value = self.tokens[at].value if self.tokens[at].kind == "op" else ""
            depth += (value in OPENING) - (value in CLOSING)
            if depth == 0:
                return at
        return len(self.tokens) - 2

    def enter(self) -> None:
        """Go a level deeper. Raises: Unreadable if that is too deep."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("too_deep")

    def leave(self) -> None:
        """Come back a level."""
        self.depth -= 1


SEPARATING_WORDS = words_of("or and oder und is are in to mod")
FACTOR_OPS = words_of("( [ { lvert lfloor lceil $ £ € ¥ langle")
STOPPING = words_of("pmod mod bmod pod over choose")
DIFFERENTIALS = (sym("d"), sym("partial"))
MAX_SUBSCRIPT = 12
MAX_DOUBLE_FACTORIAL = 300


def may_stand_before_number(cursor: Cursor) -> bool:
    """True if the number that comes next needs no sign before it: 50!50!, i4 and 3.2 10^5, but not x2."""
    before, number = cursor.tokens[cursor.at - 1], cursor.peek()
    is_power_of_ten = number.value == num(10) and number.spaced and cursor.peek(1).value == "^"
    return (
        (before.kind == "op" and before.value == "!")
        or (before.kind == "sym" and before.value == "i")
        or (before.kind == "num" and is_power_of_ten)
    )


def starts_factor(cursor: Cursor) -> bool:
    """True if the next token starts a factor that is multiplied without a sign."""
    token, following = cursor.peek(), cursor.peek(1)
    if token.kind == "word":
        return token.value.lower() not in SEPARATING_WORDS or _is_inches(cursor)
    if token.kind == "sym":
        # The letter U between brackets of intervals is a union: (1,2) U (3,4).
        before = cursor.tokens[cursor.at - 1].value
        return not (token.value == "U" and before in {")", "]"} and following.value in {"(", "["})
    if token.kind == "cmd":
        return token.value not in STOPPING and not token.value.startswith("end ")
    if token.kind == "op":
        if token.value == "(" and following.value in STOPPING:
            return False
        # A bracket that turns away closes an open interval: ]1,2[.
        if token.value == "[" and (following.kind == "end" or following.value in {"cup", "cap", ",", ")", "]"}):
            return False
        return token.value in FACTOR_OPS or (token.value == "|" and not cursor.bars and not cursor.building)
    return False


def _is_inches(cursor: Cursor) -> bool:
    """True if the word "in" that comes next is the unit, not "element of"."""
    following = cursor.peek(1)
    ends = following.kind == "end" or following.value in {"^", "}"}
    before = cursor.tokens[cursor.at - 1]
    is_value = before.kind in {"num", "cmd"} or before.value in {")", "}"}
    return ends and cursor.peek().value == "in" and is_value


def double_factorial(base: Node) -> Node:
    """Return the product of every second number down from `base`, or the value of an unknown function of a name."""
    whole = base.args[0] if base.op == "num" else None
    if isinstance(whole, int) and 0 <= whole <= MAX_DOUBLE_FACTORIAL:
        return num(math.prod(range(whole, 0, -2)))
    return Node("call", ("!!", base))


def corners(cursor: Cursor, name: str) -> Node:
    """Return the angle or triangle of the letters that follow: an angle is the same from either side."""
    letters = ""
    while is_corner(cursor.peek()):
        letters += str(cursor.take().value)
    return sym(f"triangle {letters}" if name == "triangle" else f"angle {min(letters, letters[::-1])}")


def is_corner(token: Token) -> bool:
    return token.kind == "sym" and len(token.value) == 1 and token.value.isupper()


def subscript(cursor: Cursor) -> str:
    if not cursor.take_op("{"):
        if cursor.peek().kind not in {"num", "sym", "word"}:
            raise Unreadable("odd_subscript")
        return as_name(cursor.take())
    parts: list[str] = []
    while not cursor.take_op("}"):
        if cursor.peek().kind == "end" or len(parts) > MAX_SUBSCRIPT:
            raise Unreadable("odd_subscript")
        parts.append(as_name(cursor.take()))
    return "".join(parts)


def as_name(token: Token) -> str:
    return str(token.value.args[0] if token.kind == "num" else token.value)


def quotient(above: Node, below: Node) -> Node:
    """Return `above` over `below`; a derivative such as dy/dx is one name, of which nothing cancels."""
    if above.op == "mul" == below.op and len(above.args) == len(below.args) == 2:
        d, order = above.args[0].args if above.args[0].op == "pow" else (above.args[0], num(1))
        what, by = above.args[1], below.args[1]
        by_name, power = by.args if by.op == "pow" else (by, num(1))
        if d in DIFFERENTIALS and d == below.args[0] and order == power and what.op == by_name.op == "sym":
            order_shown = "" if order == num(1) else str(order.args[0])
            return sym(f"{d.args[0]}{order_shown} {what.args[0]}/{by_name.args[0]}")
    return Node("div", (above, below))


def bare(tokens: list[Token]) -> str:
    """Return the tokens as a text in which spelling makes no difference: dfrac is frac, and ^{2} is ^2."""
    marks: list[str] = []
    for token in tokens:
        value = str(token.value.args) if isinstance(token.value, Node) else str(token.value)
        if value == "}" and token.kind == "op" and marks[-2:-1] == ["{"]:
            del marks[-2]
        else:
            marks.append({"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "×": "*"}.get(value, value))
    return " ".join(marks)


def is_whole(tree: Node) -> bool:
    """True if the tree stands for a whole number above zero: 5 or n + 1."""
    if tree.op == "num":
        return isinstance(tree.args[0], int) and tree.args[0] > 0
    return bool(variables(tree)) and variables(tree) <= {"n", "k", "m", "N"} and not has(tree, "div", "dec", "root")


def function_letters(tokens: list[Token]) -> frozenset[str]:
    """Return f, and the letters that are applied to a lone letter or number anywhere: F of F(b - a) + F(0)."""
    triples = zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False)
    return frozenset(("f", "Gamma", "zeta")) | {
        str(a.value)
        for a, opening, argument, closing in triples
        if closing.value == ")" and opening.value == "(" and a.kind == "sym" and argument.kind in {"sym", "num"}
    }
