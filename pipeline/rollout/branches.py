"""The rows of an open episode, and the search for the row and turn that a whole history continues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.types import Message, Routing, Turn


@dataclass
class Branch:
    """One row: its conversation, the tools that it was shown, and its turns."""

    tools: tuple[ToolSchema, ...] = ()
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """For each turn the number of messages up to that of the policy, this one included."""

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens of the row."""
        return tuple(token for turn in self.turns for ids in (turn.observed, turn.sampled) for token in ids)

    def up_to(self, turn: int) -> Branch:
        """Return a row that begins with the turns of this one up to number `turn`, which do not train in it."""
        shared = [replace(t, trains=False, reward=None, kept=None, routing=None) for t in self.turns[: turn + 1]]
        return Branch(self.tools, self.messages[: self.ends[turn]], shared, self.ends[: turn + 1])


def find_continued_turn(
    branches: Sequence[Branch], history: Sequence[Message], tools: Sequence[ToolSchema]
) -> tuple[int, int] | None:
    """Return the (row, turn) that `history` continues: the turn up to which most of its messages are the same.

    None: it begins with no turn of the policy, or the tools changed. Of equally long rows the newest is taken.
    """
    longest: tuple[int, int, int] | None = None
    for row, branch in enumerate(branches):
        if list(branch.tools) != list(tools):
            continue
        same = 0
        while same < min(len(history), len(branch.messages)) and is_same(history[same], branch.messages[same]):
            same += 1
        matches = [(end, row, turn) for turn, end in enumerate(branch.ends) if end <= min(same, len(history) - 1)]
        longest = max([*matches, *([longest] if longest is not None else [])], default=None)
    return None if longest is None else longest[1:]


def is_same(sent: Message, shown: Message) -> bool:
    """True if a message that an agent sent back has the words and calls of the message that it was shown.

    Thinking may be left out, and a tool's name; arguments are compared as values, not as text.
    """
    if (sent.role, sent.content) != (shown.role, shown.content):
        return False
    if sent.role == "tool":
        return sent.answers == shown.answers
    return [_canonical(c.name, dict(c.arguments)) for c in sent.calls] == [
        _canonical(c.name, dict(c.arguments)) for c in shown.calls
    ]


def _canonical(name: str, arguments: dict[str, object]) -> str:
    return json.dumps([name, arguments], sort_keys=True, ensure_ascii=False)


def with_experts(turns: list[Turn], routing: Routing | None) -> list[Turn]:
    """Return the turns of a row with their experts. `routing` has those of the whole row, position by position."""
    if routing is None:
        return turns
    width = 2 * routing.layers * routing.top_k  # bytes of a position: int16
    out, position = [], 0
    for k, turn in enumerate(turns):
        # The last sampled token of a turn is an input only of the next turn.
        end = position + len(turn.observed) + len(turn.sampled) - (k == 0)
        if turn.routing is None:
            turn = replace(turn, routing=replace(routing, experts=routing.experts[position * width : end * width]))
        out.append(turn)
        position = end
    return out
