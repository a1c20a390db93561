"""An episode of a run's files, played again: its environment or agent gets the recorded messages of the policy.

The first message that differs from the record is named. Nothing is sampled, so no model is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import NextPrompt, Piece, ReadTurn
from verizero.pipeline.errors import EnvironmentFailed
from verizero.pipeline.report.rows import MessageRow
from verizero.pipeline.rollout.engine import Completion
from verizero.pipeline.rollout.episode import Limits, OpenEpisode
from verizero.pipeline.rollout.play import EnvironmentMaker
from verizero.pipeline.types import Call, FinishReason, Message, Prompt

NOTHING = (0,)
"""Stands for the tokens of a message: a replay looks at texts alone."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The conversation that a replay gave, and its first difference from the record.

    Example: Replayed(messages=(question, answer), difference=None)
    """

    messages: tuple[Message, ...]
    difference: int | None
    """Index of the first message that differs; None if all are equal."""


class Recorded:
    """Says what the record says, whatever it is shown."""

    def __init__(self, messages: Sequence[Message]) -> None:
        """`messages`: the record of an episode."""
        self._own = [m for m in messages if m.role == "assistant"]

    @property
    def num_turns(self) -> int:
        """The number of turns in the record."""
        return len(self._own)

    def opening(self, prompt: Prompt, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages of the environment, or the prompt's own."""
        if messages:
            return tuple(messages)
        system = [] if prompt.system is None else [Message("system", prompt.system)]
        return (*system, Message("user", prompt.question))

    def begin(self, prompt: Prompt, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return one token."""
        return NOTHING

    def read(
        self, sampled: Sequence[int], finish_reason: FinishReason, turn: int, tools: Sequence[ToolSchema]
    ) -> ReadTurn:
        """Return the recorded message of that turn."""
        message = self._own[turn]
        return ReadTurn(message, message.unread)

    def write(self, message: Message, tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return one token."""
        return NOTHING

    def extend(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[ToolSchema],
        sampled: Sequence[tuple[int, ...]],
        finish_reason: FinishReason,
    ) -> NextPrompt:
        """Return one observed token: rows are not compared."""
        return NextPrompt((Piece(NOTHING),))


def replay(plugin: EnvironmentMaker, prompt: Prompt, seeds: tuple[int, int], record: Sequence[Message]) -> Replayed:
    """Play the recorded episode again. `seeds`: of the task and of the episode.

    Raises: EnvironmentFailed if the environment breaks, which tells nothing of the record.
    """
    recorded = Recorded(record)
    limits = Limits(max_turns=recorded.num_turns + 1, max_unread=recorded.num_turns, ends_when_cut=False, retries=0)
    playing = OpenEpisode(prompt, 0, partial(plugin.make, prompt, *seeds), recorded, limits, seeds[1])
    try:
        while playing.ending is None:
            if playing.awaits_environment:
                playing.advance()
                playing.settle()
            elif playing.turn < recorded.num_turns:
                playing.take(Completion(NOTHING, (0.0,), "stop"), 0)
            else:
                break  # the record ends here, at one of its limits
        messages = playing.messages
        if playing.outcome is not None and playing.outcome.status == "environment_error":
            raise EnvironmentFailed(f"the environment of prompt {prompt.id!r} failed: {playing.outcome.reason}")
    finally:
        playing.close()
    pairs = zip(messages, record, strict=False)
    different = (i for i, (now, then) in enumerate(pairs) if now != then)
    shorter = min(len(messages), len(record))
    rest = None if len(messages) >= len(record) else shorter
    return Replayed(messages, next(different, rest))


def message_of(row: MessageRow) -> Message:
    """Return the message of a row."""
    calls = tuple(Call(str(c["id"]), str(c["name"]), dict(c["arguments"])) for c in row.calls or ())
    return Message(row.role, row.text, calls, row.answers, row.name, unread=row.unread)  # type: ignore[arg-type]
