"""Conversations in tokens: what a policy said, the prompt after it, and the protocols of what reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.types import FinishReason, Message, Prompt


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A turn of the policy, read.

    Example: ReadTurn(Message("assistant", "", calls=(Call("0-0", "add", {"a": 1, "b": 2}),)))
    """

    message: Message
    unread: str | None = None
    """The reason for which a call could not be read, in words for the policy; None if all of it was read."""


@dataclass(frozen=True, slots=True)
class FoundCalls:
    """Calls in a text, and the text without them.

    Example: FoundCalls("Let me add.", (("add", {"a": 1, "b": 2}),))
    """

    content: str
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """(name, arguments) in the order in which they were written."""
    unread: str | None = None


@dataclass(frozen=True, slots=True)
class NotFromPolicy(Message):
    """A message in the assistant's name that the policy did not say.

    Example: NotFromPolicy("assistant", "Hello!")
    """


def mark_not_from_policy(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages that others sent, those in the assistant's name marked."""
    names = [f.name for f in fields(Message)]
    return tuple(
        NotFromPolicy(**{name: getattr(m, name) for name in names}) if m.role == "assistant" else m for m in messages
    )


class CallForm(Protocol):
    """A form of calls. A plug-in's module has `read` and `write`, which are each other's inverse."""

    def read(self, text: str, tools: Sequence[ToolSchema] = ()) -> FoundCalls:
        """Return the calls in a text that has no thinking. `tools` tell names and types where the form lacks them."""
        ...

    def write(
        self, content: str, calls: Sequence[tuple[str, Mapping[str, Any]]], tools: Sequence[ToolSchema] = ()
    ) -> str:
        """Return the text in which a policy says `content` and makes these calls.

        Raises: DataError for calls that the form cannot write.
        """
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a prompt: tokens that were observed, or the sampled tokens of an earlier turn.

    Example: Piece((7, 9, 4))
    """

    ids: tuple[int, ...]
    turn: int | None = None
    """Number of the turn, from 0, that sampled these tokens; None: they are observed."""


@dataclass(frozen=True, slots=True)
class NextPrompt:
    """The prompt of the next turn.

    Example: NextPrompt(pieces=(Piece((5, 6)),))
    """

    pieces: tuple[Piece, ...]
    """Without a fork: one observed piece, which follows what the row holds. With a fork: the whole of a new row."""
    fork: str | None = None
    """The cause for which the history could not be kept, e.g. "thinking"; None: the row continues."""
    num_new: int = 0
    """With a fork: the last tokens of the last piece that the new messages bring, from their first word on."""


class Conversing(Protocol):
    """Writes conversations as tokens, and reads what the policy wrote."""

    def begin(self, prompt: Prompt, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return the tokens of the first prompt: of `messages`, or where there are none of the prompt's question."""
        ...

    def opening(self, prompt: Prompt, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages that `begin` shows."""
        ...

    def read(
        self, sampled: Sequence[int], finish_reason: FinishReason, turn: int, tools: Sequence[ToolSchema]
    ) -> ReadTurn:
        """Return what the policy said in turn number `turn`, when it was shown `tools`."""
        ...

    def write(self, message: Message, tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return the tokens of a policy that says this message: a turn to imitate, with its end token.

        Raises: DataError for a message that the policy cannot say.
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

        `history` ends with what the policy said last; `sampled` has the tokens of each of its turns, and
        `finish_reason` is that of the last of them. All else, `NotFromPolicy` messages among it, is text.
        """
        ...
