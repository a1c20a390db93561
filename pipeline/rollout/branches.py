"""The rows of an episode that is being played, and the place in them that a whole history continues."""

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


def continued(
    branches: Sequence[Branch], history: Sequence[Message], tools: Sequence[ToolSchema]
) -> tuple[int, int] | None:
    """Return the (row, turn) after which `history` continues: that of the longest known beginning.

    None: it begins with no turn of the policy, or the tools changed. Of equally long ones the newest row is taken.
    """
    best: tuple[int, int, int] | None = None
    for number, branch in enumerate(branches):
        if list(branch.tools) != list(tools):
            continue
        same = 0
        while same < min(len(history), len(branch.messages)) and is_same(history[same], branch.messages[same]):
            same += 1
        known = [(end, number, turn) for turn, end in enumerate(branch.ends) if end <= min(same, len(history) - 1)]
        best = max([*known, *([best] if best is not None else [])], default=None)
    return None if best is None else best[1:]


def is_same(message: Message, held: Message) -> bool:
    """True if an agent's copy of a message is the one that it was shown: the same words and calls.

    Thinking may be left out, and a tool's name; arguments are compared as values, not as text.
    """
    if (message.role, message.content) != (held.role, held.content):
        return False
    if message.role == "tool":
        return message.answers == held.answers
    return [_canonical(c.name, dict(c.arguments)) for c in message.calls] == [
        _canonical(c.name, dict(c.arguments)) for c in held.calls
    ]


def _canonical(name: str, arguments: dict[str, object]) -> str:
    return json.dumps([name, arguments], sort_keys=True, ensure_ascii=False)


def with_experts(turns: list[Turn], routing: Routing | None) -> list[Turn]:
    """Return the turns of a row, those without experts with theirs out of `routing`, which has all positions."""
    if routing is None:
        return turns
    width = 2 * routing.layers * routing.top_k  # bytes of a position: int16
    out, at = [], 0
    for k, turn in enumerate(turns):
        # The last sampled token of a turn is an input only of the next turn.
        num = len(turn.observed) + len(turn.sampled) - (k == 0)
        if turn.routing is None:
            turn = replace(turn, routing=replace(routing, experts=routing.experts[at * width : (at + num) * width]))
        out.append(turn)
        at += num
    return out
