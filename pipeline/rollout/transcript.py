"""The transcript of an episode: its messages, its turns and their rows of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from verizero.pipeline.environments.base import Start, ToolSchema
from verizero.pipeline.environments.conversing import Conversing, NextPrompt, ReadTurn, mark_not_from_policy
from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.branches import Branch, find_continued_turn, with_experts
from verizero.pipeline.rollout.engine import Completion
from verizero.pipeline.types import Message, Prompt, Turn


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
    num_new: int | None = None
    """After a fork: how many of the observed tokens are new. None: all."""
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

    @property
    def first_text(self) -> str:
        """The policy's first words."""
        return next((m.content for m in self.messages if m.role == "assistant"), "")

    def begin(self, start: Start) -> None:
        """Show the first messages of the environment."""
        opening = self.conversing.opening(self.prompt, start.messages)
        self.branches = [Branch(start.tools, list(mark_not_from_policy(opening)))]
        self.messages = list(opening)
        self.observed = self.conversing.begin(self.prompt, start.messages, start.tools)

    def add(self, completion: Completion, policy_version: int, state: str | None) -> None:
        """Add a turn of the policy; call `read` next. `state`: the environment's state before the turn."""
        turn = Turn(
            observed=self.observed,
            sampled=completion.token_ids,
            logprobs=completion.logprobs,
            finish_reason=completion.finish_reason,
            policy_version=policy_version,
            kept=completion.kept,
            state=state,
            number=len(self.turns),
            num_new=self.num_new,
        )
        if completion.num_prefilled is not None:
            self.counts["tokens/prompted"] += len(self.ids)
            self.counts["tokens/prefilled"] += completion.num_prefilled
        branch = self.branch
        branch.turns = with_experts([*branch.turns, turn], completion.routing)
        self.turns.append(branch.turns[-1])
        self.observed, self.num_new = (), None

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

    def num_prompt(self, history: Sequence[Message], tools: Sequence[ToolSchema]) -> int:
        """Return the number of tokens in the prompt of a next turn that is shown `history`; nothing changes."""
        continued = find_continued_turn(self.branches, history, tools)
        if continued is None:
            return len(self.conversing.begin(self.prompt, history, tools))
        row, turn = continued
        branch = self.branches[row].up_to(turn)
        next_prompt = self._next_prompt(branch, history[branch.ends[-1] :])
        num_before = len(branch.ids) if next_prompt.fork is None else 0
        return num_before + sum(len(piece.ids) for piece in next_prompt.pieces)

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
        next_prompt = self._next_prompt(self.branch, new)
        self.messages += new
        if next_prompt.fork is None:
            self._continue_row(next_prompt)
        else:
            self._repeat_in_a_row(next_prompt)
        self.branch.messages += mark_not_from_policy(new)

    def _next_prompt(self, branch: Branch, new: Sequence[Message]) -> NextPrompt:
        sampled, finish_reason = [tuple(turn.sampled) for turn in branch.turns], branch.turns[-1].finish_reason
        return self.conversing.extend(branch.messages, tuple(new), branch.tools, sampled, finish_reason)

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
        self.observed, self.num_new = observed, next_prompt.num_new
