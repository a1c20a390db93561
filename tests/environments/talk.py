"""Short words for messages, and plays of an environment by a list of moves."""

from collections.abc import Sequence
from typing import Any

from verizero.pipeline.environments.base import Environment, Reply, load
from verizero.pipeline.types import Call, Message, Prompt

Move = str | tuple[str, dict[str, Any]]


def said(move: Move, turn: int = 0) -> Message:
    """A text, or a call of a tool."""
    if isinstance(move, str):
        return Message("assistant", move)
    return Message("assistant", "", (Call(f"{turn}-0", *move),))


def played(environment: Environment, moves: Sequence[Move]) -> list[Reply]:
    """The answers to the moves, of which none comes after the end."""
    environment.start()
    replies = []
    for turn, move in enumerate(moves):
        assert not (replies and replies[-1].done)
        replies.append(environment.step(said(move, turn)))
    environment.close()
    return replies


def halving(environment: Environment) -> list[Any]:
    """The start and the answers, where a number of 1 to 32 is guessed by halving: one needs more than five tries."""
    shown: list[Any] = [environment.start()]
    low, high = 1, 32
    while len(shown) == 1 or not shown[-1].done:
        guess = (low + high) // 2
        shown.append(environment.step(said(str(guess))))
        low, high = (guess + 1, high) if texts(shown[-1:]) == ["higher"] else (low, guess - 1)
    environment.close()
    return shown


def made(name: str, reference: Any, **params: Any) -> Environment:
    """A new episode."""
    return load(name).bind(params).make(Prompt("p", "q", "environment", reference), 5, 6)


def texts(replies: Sequence[Reply]) -> list[str]:
    """What the policy was shown."""
    return [m.content for reply in replies for m in reply.messages]
