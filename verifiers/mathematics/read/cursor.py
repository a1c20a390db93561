"""A place in a list of tokens, with the depth and the number of nodes so far bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verifiers.mathematics.read.lexer import Token, Unreadable
from verifiers.mathematics.read.syntax_tree import Node

MAX_DEPTH = 48
END = Token("end", "", False)


class Cursor:
    """Tokens and where we are in them. `bracketed` reads brackets, sets and matrices; it is given by the parser."""

    __slots__ = ("at", "bars", "bracketed", "building", "depth", "tokens")

    def __init__(self, tokens: list[Token], bracketed: Callable[[Cursor], Node | None]) -> None:
        self.tokens = [*tokens, END, END, END]
        self.at = 0
        self.depth = 0
        self.bars = 0
        """How many | are open: inside, a | closes."""
        self.building = 0
        """How many sets are open: inside, a | or : starts the condition."""
        self.bracketed = bracketed

    def peek(self, ahead: int = 0) -> Token:
        """The token `ahead` places from here; the end repeats."""
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else END

    def is_op(self, *values: str) -> bool:
        """Whether the next token is one of these operators."""
        token = self.tokens[self.at]
        return token.kind == "op" and token.value in values

    def is_cmd(self, *values: str) -> bool:
        """Whether the next token is one of these commands."""
        token = self.tokens[self.at]
        return token.kind == "cmd" and token.value in values

    def take_op(self, *values: str) -> Any:
        """The next token's value if it is one of these operators, which is passed; else None."""
        token = self.tokens[self.at]
        if token.kind == "op" and token.value in values:
            self.at += 1
            return token.value
        return None

    def expect(self, *values: str) -> str:
        """Pass one of these operators. Raises: Unreadable."""
        said = self.take_op(*values)
        if said is None:
            raise Unreadable(f"expected {' or '.join(values)}, found {self.peek().value!r}")
        return str(said)

    def enter(self) -> None:
        """Go one level deeper. Raises: Unreadable when too deep."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("too_deep")

    def leave(self) -> None:
        """Come back one level."""
        self.depth -= 1
