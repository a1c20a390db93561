"""Demonstrations in turns: a player and an environment take turns, and their messages are written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from verizero.pipeline.environments.base import Environment
from verizero.pipeline.types import Call, Message, Verdict

Words = str | tuple[str, Mapping[str, Any]]
"""A move of a player: a text, or the name and the arguments of a call."""
Player = Callable[[str], Words]
"""Takes the last observation (at first nothing)."""
MOST_TURNS = 50


def played(environment: Environment, player: Player) -> tuple[list[dict[str, Any]], Verdict | None]:
    """Return the messages after the question, as a row's demonstration holds them, and the environment's verdict."""
    messages: list[dict[str, Any]] = []
    try:
        environment.start()
        observed = ""
        for turn in range(MOST_TURNS):
            words = player(observed)
            message = spoken(words, turn)
            messages.append(_row(message))
            reply = environment.step(message)
            messages.extend(_row(m) for m in reply.messages)
            if reply.done:
                return messages, reply.outcome
            observed = reply.messages[-1].content
    finally:
        environment.close()
    return messages, None


def spoken(words: Words, turn: int) -> Message:
    """Return the player's message."""
    if isinstance(words, str):
        return Message("assistant", words)
    return Message("assistant", "", (Call(f"{turn}-0", *words),))


def _row(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        row["calls"] = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.calls]
    return row
