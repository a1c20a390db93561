"""Conversations in tokens: the policy's turns, the prompts after them, and the protocol that reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.types import FinishReason, Message, Prompt


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A turn of the policy as a message, after its calls were read.

    Example: ReadTurn(Message("assistant", "", calls=(Call("0-0", "add", {"a": 1, "b": 2}),)))
    """

    message: Message
    unread: str | None = None
    """Why a call could not be read, in words for the policy; None if all calls were read."""


@dataclass(frozen=True, slots=True)
class FoundCalls:
    """Calls in a text, and the text without them. Example: FoundCalls("Let me add.", (("add", {"a": 1, "b": 2}),))"""

    content: str
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """(name, arguments) in the order in which they were written."""
    unread: str | None = None


@dataclass(frozen=True, slots=True)
class NotFromPolicy(Message):
    """A message of the role assistant that the policy did not write."""


def mark_not_from_policy(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages from others than the policy; those of the role assistant become NotFromPolicy."""
    names = [f.name for f in fields(Message)]
    return tuple(
        NotFromPolicy(**{name: getattr(m, name) for name in names}) if m.role == "assistant" else m for m in messages
    )


class CallForm(Protocol):
    """A form of calls. A plug-in's module has `read` and `write`, which are each other's inverse."""

    def read(self, text: str, tools: Sequence[ToolSchema] = ()) -> FoundCalls:
        """Return the calls in a text without thinking. `tools` give names and types that the form lacks."""
        ...

    def write(
        self, content: str, calls: Sequence[tuple[str, Mapping[str, Any]]], tools: Sequence[ToolSchema] = ()
    ) -> str:
        """Return the text of a turn with these words and calls. Raises: DataError for calls it cannot write."""
        ...


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """A part of a prompt: tokens that were observed, or the sampled tokens of an earlier turn."""

    ids: tuple[int, ...]
    turn: int | None = None
    """Number of the turn, from 0, that sampled these tokens; None: they are observed."""


@dataclass(frozen=True, slots=True)
class NextPrompt:
    """The prompt of the next turn."""

    pieces: tuple[PromptPiece, ...]
    """Without a fork: one observed piece, which continues the row. With a fork: a whole new row."""
    fork: str | None = None
    """Why the row cannot be continued, e.g. "thinking"; None: it continues."""


class Conversing(Protocol):
    """Writes conversations as tokens, and reads what the policy wrote."""

    def begin(self, prompt: Prompt, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return the tokens of the first prompt: those of `messages`, or of the prompt's question if there are none."""
        ...

    def opening(self, prompt: Prompt, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages that `begin` shows."""
        ...

    def read(
        self, sampled: Sequence[int], finish_reason: FinishReason, turn: int, tools: Sequence[ToolSchema]
    ) -> ReadTurn:
        """Return the sampled tokens of turn number `turn` as a message. `tools`: those that the policy was shown."""
        ...

    def write(self, message: Message, tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return the tokens of this message as a turn of the policy, with its end token: a turn to imitate.

        Raises: DataError for a message that no tokens of the policy could mean.
        """
        ...

    def extend(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[ToolSchema],
        sampled: Sequence[tuple[int, ...]],
        finish_reason: FinishReason,
    ) -> NextPrompt:
        """Return the prompt after `new`.

        `history` ends with the policy's last message; `sampled` has the tokens of each of its turns, and
        `finish_reason` is that of the last of them. All other messages, `NotFromPolicy` ones too, are written as text.
        """
        ...
