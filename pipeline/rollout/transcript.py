"""The transcript of an episode: its messages, its turns and their rows of tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from verizero.pipeline.environments.base import Start, ToolSchema
from verizero.pipeline.environments.conversing import Conversing, NextPrompt, ReadTurn, mark_not_from_policy
from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.engine import Completion
from verizero.pipeline.types import Message, Prompt, Routing, Turn


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


@dataclass
class Transcript:
    """The turns, messages and rows of an episode so far. Only its methods change it."""

    prompt: Prompt
    conversing: Conversing
    label: str
    """The response's name in messages of errors."""
    branches: list[Branch] = field(default_factory=lambda: [Branch()])
    row: int = 0
    """The index in `branches` of the row that the next turn continues."""
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    """Each sampled turn once, in order."""
    observed: tuple[int, ...] = ()
    """Tokens that the next turn is shown, after those of its row."""
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def branch(self) -> Branch:
        """The row that the next turn continues."""
        return self.branches[self.row]

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens of the next turn's prompt."""
        return self.branch.ids + self.observed

    @property
    def num_sampled(self) -> int:
        """The number of tokens that were sampled in all turns."""
        return sum(len(turn.sampled) for turn in self.turns)

    @property
    def rows(self) -> tuple[tuple[Turn, ...], ...]:
        """The rows in which a turn trains."""
        return tuple(tuple(b.turns) for b in self.branches if any(turn.trains for turn in b.turns))

    def begin(self, start: Start) -> None:
        """Show the first messages of the environment."""
        opening = self.conversing.opening(self.prompt, start.messages)
        self.branches = [Branch(start.tools, list(mark_not_from_policy(opening)))]
        self.messages = list(opening)
        self.observed = self.conversing.begin(self.prompt, start.messages, start.tools)

    def add(self, completion: Completion, policy_version: int) -> None:
        """Add a turn of the policy; call `read` next."""
        turn = Turn(
            observed=self.observed,
            sampled=completion.token_ids,
            logprobs=completion.logprobs,
            finish_reason=completion.finish_reason,
            policy_version=policy_version,
            kept=completion.kept,
            number=len(self.turns),
        )
        branch = self.branch
        branch.turns = with_experts([*branch.turns, turn], completion.routing)
        self.turns.append(branch.turns[-1])
        self.observed = ()

    def read(self) -> ReadTurn:
        """Read the last turn: add its message, and return it."""
        turn, branch = self.turns[-1], self.branch
        read = self.conversing.read(turn.sampled, turn.finish_reason, len(self.turns) - 1, branch.tools)
        branch.messages.append(read.message)
        branch.ends.append(len(branch.messages))
        self.messages.append(read.message)
        return read

    def reward_last(self, reward: float) -> None:
        """Give the last turn a reward."""
        self.turns[-1] = self.branch.turns[-1] = replace(self.turns[-1], reward=reward)

    def continue_with(self, history: tuple[Message, ...], tools: tuple[ToolSchema, ...]) -> None:
        """Show a whole history: continue a row that begins with the same messages, or begin a new row."""
        continued = find_continued_turn(self.branches, history, tools)
        if continued is None:
            self.counts["forks/history"] += 1
            self.messages += history
            self._begin_branch(Branch(tools, list(mark_not_from_policy(history))))
            self.observed = self.conversing.begin(self.prompt, history, tools)
            return
        self.row, turn = continued
        if turn + 1 < len(self.branch.turns):
            self.counts["forks/branch"] += 1
            self._begin_branch(self.branch.up_to(turn))
        self.show(history[self.branch.ends[turn] :])

    def show(self, new: tuple[Message, ...]) -> None:
        """Show messages after the last turn of the row."""
        branch = self.branch
        sampled, finish_reason = [tuple(turn.sampled) for turn in branch.turns], branch.turns[-1].finish_reason
        next_prompt = self.conversing.extend(branch.messages, new, branch.tools, sampled, finish_reason)
        self.messages += new
        if next_prompt.fork is None:
            self._continue_row(next_prompt)
        else:
            self._repeat_in_a_row(next_prompt)
        self.branch.messages += mark_not_from_policy(new)

    def _begin_branch(self, branch: Branch) -> None:
        self.branches.append(branch)
        self.row = len(self.branches) - 1

    def _continue_row(self, next_prompt: NextPrompt) -> None:
        pieces = next_prompt.pieces
        if len(pieces) != 1 or pieces[0].turn is not None or not pieces[0].ids:
            raise EngineError(
                f"turn {len(self.turns)} of {self.label} continues its row with {len(pieces)} pieces; "
                "expected one piece of observed tokens"
            )
        self.observed = pieces[0].ids

    def _repeat_in_a_row(self, next_prompt: NextPrompt) -> None:
        """Begin a row whose history was written again; sampled tokens that it repeats are context, and do not train."""
        self.counts[f"forks/{next_prompt.fork}"] += 1
        before = self.branch
        row = Branch(before.tools, list(before.messages))
        observed: tuple[int, ...] = ()
        for piece in next_prompt.pieces:
            if piece.turn is None:
                observed += piece.ids
                continue
            earlier = before.turns[piece.turn]
            if piece.ids != earlier.sampled or not observed:
                raise EngineError(
                    f"a new row of {self.label} repeats turn {piece.turn} with other tokens than were sampled, or "
                    "without a prompt"
                )
            turn = replace(earlier, observed=observed, trains=False, reward=None, kept=None, routing=None)
            row.turns.append(turn)
            row.ends.append(before.ends[piece.turn])
            observed = ()
        self._begin_branch(row)
        self.observed = observed
