"""Plays a recorded episode again: its environment or agent gets the recorded messages of the policy.

The first message that differs from the record is named. Nothing is sampled, so no model is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import NextPrompt, PromptPiece, ReadTurn
from verizero.pipeline.errors import EnvironmentFailed
from verizero.pipeline.report.row_types import MessageRow
from verizero.pipeline.rollout.engine import Completion
from verizero.pipeline.rollout.episode import EpisodeLimits, OpenEpisode
from verizero.pipeline.rollout.play import EnvironmentMaker
from verizero.pipeline.types import Call, FinishReason, Message, Prompt

ANY_TOKENS = (0,)
"""Stands for the tokens of any message: a replay compares messages, not tokens."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The conversation of a replay, and its first difference from the record.

    Example: Replayed(messages=(question, answer), difference=None)
    """

    messages: tuple[Message, ...]
    difference: int | None
    """Index of the first message that differs; None if all are equal."""


class RecordedTurns:
    """Reads the recorded messages of the policy in place of sampled tokens."""

    def __init__(self, messages: Sequence[Message]) -> None:
        """`messages`: the record of an episode."""
        self._turns = [m for m in messages if m.role == "assistant"]

    @property
    def num_turns(self) -> int:
        """The number of turns in the record."""
        return len(self._turns)

    def opening(self, prompt: Prompt, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages of the environment, or the prompt's own."""
        if messages:
            return tuple(messages)
        system = [] if prompt.system is None else [Message("system", prompt.system)]
        return (*system, Message("user", prompt.asked))

    def begin(self, prompt: Prompt, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return one token."""
        return ANY_TOKENS

    def read(
        self, sampled: Sequence[int], finish_reason: FinishReason, turn: int, tools: Sequence[ToolSchema]
    ) -> ReadTurn:
        """Return the recorded message of that turn."""
        message = self._turns[turn]
        return ReadTurn(message, message.unread)

    def write(self, message: Message, tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        """Return one token."""
        return ANY_TOKENS

    def extend(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[ToolSchema],
        sampled: Sequence[tuple[int, ...]],
        finish_reason: FinishReason,
    ) -> NextPrompt:
        """Return one observed token: rows are not compared."""
        return NextPrompt((PromptPiece(ANY_TOKENS),))


def replay(plugin: EnvironmentMaker, prompt: Prompt, seeds: tuple[int, int], record: Sequence[Message]) -> Replayed:
    """Play the recorded episode again. `seeds`: of the task and of the episode.

    Raises: EnvironmentFailed if the environment breaks, which shows nothing about the record.
    """
    turns = RecordedTurns(record)
    limits = EpisodeLimits(max_turns=turns.num_turns + 1, max_unread=turns.num_turns, ends_when_cut=False, retries=0)
    episode = OpenEpisode(prompt, 0, partial(plugin.make, prompt, *seeds), turns, limits, seeds[1])
    try:
        while episode.ending is None:
            if episode.awaits_environment:
                episode.advance()
                episode.settle()
            elif episode.turn < turns.num_turns:
                episode.take(Completion(ANY_TOKENS, (0.0,), "stop"), 0)
            else:
                break  # the record ends here, at one of its limits
        messages = episode.messages
        if episode.outcome is not None and episode.outcome.status == "environment_error":
            raise EnvironmentFailed(f"the environment of prompt {prompt.id!r} failed: {episode.outcome.reason}")
    finally:
        episode.close()
    pairs = zip(messages, record, strict=False)
    different = (i for i, (replayed, recorded) in enumerate(pairs) if replayed != recorded)
    # A replay that is shorter than the record differs at its end. One may be longer: the record ended at a limit.
    end = len(messages) if len(messages) < len(record) else None
    return Replayed(messages, next(different, end))


def message_of(row: MessageRow) -> Message:
    """Return the message of a row."""
    calls = tuple(Call(str(c["id"]), str(c["name"]), dict(c["arguments"])) for c in row.calls or ())
    return Message(row.role, row.text, calls, row.answers, row.name, unread=row.unread)  # type: ignore[arg-type]
