"""Turn a policy's text into a message, and a message into a policy's text."""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import CallForm, ReadTurn
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Call, FinishReason, Message

OPEN, CLOSE = "<think>", "</think>"
"""The marks around thinking. A text of it that is not closed has no calls."""


def call_id(turn: int, number: int) -> str:
    """Return the id of a call: it depends only on turn and number, so that equal seeds give equal episodes."""
    return f"{turn}-{number}"


def after_thinking(text: str, is_open: bool = False) -> int:
    """Return the index after the last thinking; len(text) if it is not closed. `is_open`: the prompt has opened it."""
    index = 0
    while True:
        if is_open:
            close = text.find(CLOSE, index)
            if close < 0:
                return len(text)
            index, is_open = close + len(CLOSE), False
        start = text.find(OPEN, index)
        if start < 0:
            return index
        index, is_open = start + len(OPEN), True


def read_turn(
    form: CallForm,
    text: str,
    finish_reason: FinishReason,
    turn: int,
    tools: Sequence[ToolSchema],
    is_open: bool = False,
) -> ReadTurn:
    """Return the message in the policy's text. Markup in thinking, or in a turn that was cut, is no call.

    A turn of which some call cannot be read makes none, and keeps its whole text.
    """
    index = after_thinking(text, is_open)
    if finish_reason == "length" or index == len(text):
        return ReadTurn(Message("assistant", text))
    result = form.read(text[index:], tools)
    if result.unread is not None:
        return ReadTurn(Message("assistant", text), result.unread)
    calls = tuple(Call(call_id(turn, i), name, arguments) for i, (name, arguments) in enumerate(result.calls))
    return ReadTurn(Message("assistant", text[:index] + result.content, calls))


def text_of_turn(form: CallForm, message: Message, tools: Sequence[ToolSchema]) -> str:
    """Return the text with which a policy says the message. Raises: DataError if it is not the policy's."""
    if message.role != "assistant":
        raise DataError(f"the policy says messages of the assistant, and this is one of role {message.role!r}")
    thinking = "" if message.thinking is None else f"{OPEN}{message.thinking}{CLOSE}"
    return thinking + form.write(message.content, [(call.name, call.arguments) for call in message.calls], tools)
