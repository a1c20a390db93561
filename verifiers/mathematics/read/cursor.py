"""A position in a list of tokens, with a bound on the nesting of what was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verizero.verifiers.mathematics.read.lexer import CLOSING, OPENING, Token, Unreadable
from verizero.verifiers.mathematics.read.syntax_tree import Node

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
        """Pass one of these operators and return it.

        Raises: Unreadable if the next token is something else.
        """
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
        """Go a level deeper.

        Raises: Unreadable if that is too deep.
        """
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("too_deep")

    def leave(self) -> None:
        """Come back a level."""
        self.depth -= 1
