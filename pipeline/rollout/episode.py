"""One episode while it is played: its conversation, its rows, its limits, and its end."""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from verizero.pipeline.environments.base import CountsPrompts, CountsTokens, Environment, Reply, Start, ToolSchema
from verizero.pipeline.environments.conversing import Conversing, Next, Said, foreign
from verizero.pipeline.environments.wire import fault
from verizero.pipeline.errors import EngineError, EnvironmentFailed, VerizeroError, raise_if_operator, told
from verizero.pipeline.rollout.branches import Branch, continued, with_experts
from verizero.pipeline.rollout.engine import Completion
from verizero.pipeline.types import Ending, Episode, Message, Prompt, Rollout, Turn, Verdict

_COUNTING = threading.Lock()
"""Episodes share a tokenizer, and those that count do so in threads of their own."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an episode. A limit of None is off."""

    max_turns: int
    max_tokens: int | None = None
    """Sampled tokens of the episode."""
    context: int | None = None
    """Tokens of a row: the longest sequence of the model."""
    max_unread: int = 2
    """Turns in a row whose calls could not be read."""
    ends_when_cut: bool = True
    """A turn that was cut at its length limit ends the episode; else the environment answers it."""
    wall_s: float | None = None
    """Seconds of the environment's work; the time that the engine takes does not count."""
    retries: int = 1
    """New beginnings after the environment broke."""
    shorten: Callable[[str], str] | None = None
    """Returns a message that is too long with its middle left out, and any other as it is."""


class Playing:
    """An episode that is being played. `begin`, then by turns `take` and `answer`, until `ending` is set.

    `begin` and `answer` run the environment, in any thread, and raise nothing that it raises. The rest is called by one
    thread, so that the order of the episodes decides everything.
    """

    def __init__(
        self,
        prompt: Prompt,
        sample: int,
        make: Callable[[], Environment],
        conversing: Conversing,
        limits: Limits,
        seed: int | None = None,
    ) -> None:
        """`make` returns a new environment of the same task and seeds each time; `seed` is the episode's own."""
        self.prompt, self.sample, self.seed = prompt, sample, seed
        self._make, self._conversing, self._limits = make, conversing, limits
        self._environment: Environment | None = None
        self._failures = 0
        self.retries = 0
        """New beginnings so far."""
        self._reset()

    def _reset(self) -> None:
        self.ending: Ending | None = None
        self.outcome: Verdict | None = None
        self._answer: str | None = None
        self._start = Start()
        self._branches = [Branch()]
        self._at = 0
        self._messages: list[Message] = []
        self._observed: tuple[int, ...] = ()
        self._num_new: int | None = None
        self._sampled: list[Turn] = []
        self._unread = 0
        self._seconds = 0.0
        self._counts: Counter[str] = Counter()
        self._state: str | None = None
        self._failure: str | None = None
        self._reply: Reply | None = None
        self._must_begin = True

    @property
    def turn(self) -> int:
        """The number of the next turn, from 0."""
        return len(self._sampled)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far."""
        return tuple(self._messages)

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens of the next turn's prompt."""
        return self._branch.ids + self._observed

    @property
    def _branch(self) -> Branch:
        return self._branches[self._at]

    def room(self, max_turn_tokens: int) -> int:
        """Return the number of tokens that the next turn may sample."""
        most = [max_turn_tokens]
        if self._limits.max_tokens is not None:
            most.append(self._limits.max_tokens - self._num_sampled())
        if self._limits.context is not None:
            most.append(self._limits.context - len(self.ids))
        return min(most)

    def advance(self) -> None:
        """Let the environment begin, or answer the last message. Keeps what it raises for `settle`."""
        start = time.perf_counter()
        try:
            if self._must_begin:
                self.close()
                self._environment = self._make()
                if isinstance(self._environment, CountsPrompts):
                    self._environment.count_by(self.num_prompt)
                self._start = self._environment.start()
            else:
                assert self._environment is not None
                if isinstance(self._environment, CountsTokens):
                    last = self._branch.turns[-1]
                    sampled = len(last.sampled)
                    self._environment.count_tokens(len(self.ids) - sampled, sampled, last.finish_reason == "length")
                self._reply = self._environment.step(self._messages[-1])
                if wrong := fault(self._reply):
                    raise EnvironmentFailed(f"the environment's answer {wrong}")
        except BaseException as exc:  # whatever it is, the environment's host broke: the policy's mistakes are replies
            raise_if_operator(exc)
            self._failure = told(exc)
        self._seconds += time.perf_counter() - start

    def num_prompt(self, history: Sequence[Message], tools: Sequence[ToolSchema]) -> int:
        """Return the tokens of the prompt of a next turn that is shown `history`; nothing changes.

        For the environment, within `advance`. Raises: DataError if the chat template refuses the conversation.
        """
        with _COUNTING:
            place = continued(self._branches, history, tools)
            if place is None:
                return len(self._conversing.begin(self.prompt, history, tools))
            branch = self._branches[place[0]].up_to(place[1])
            sampled, cut = [tuple(turn.sampled) for turn in branch.turns], branch.turns[-1].finish_reason
            new = history[branch.ends[-1] :]
            following = self._conversing.extend(branch.messages, new, branch.tools, sampled, cut)
        kept = len(branch.ids) if following.fork is None else 0
        return kept + sum(len(piece.ids) for piece in following.pieces)

    def settle(self) -> bool:
        """Take the result of `advance`. Return True if the next turn can be sampled, or the episode has ended.

        False: the environment broke, and the episode starts again with the same seeds.
        """
        if self._failure is not None:
            return self._settle_failure(self._failure)
        with self._alone():
            if self._must_begin:
                self._begin()
            elif self._reply is not None:
                self._settle_reply(self._reply)
                self._reply = None
        return True

    def _begin(self) -> None:
        self._must_begin = False
        opening = self._conversing.opening(self.prompt, self._start.messages)
        self._branches = [Branch(self._start.tools, list(foreign(opening)))]
        self._messages = list(opening)
        self._observed = self._conversing.begin(self.prompt, self._start.messages, self._start.tools)
        self._state = self._start.state
        if self.room(1) < 1:
            self._fail(f"a first prompt of {len(self.ids)} tokens in a context of {self._limits.context}")

    def take(self, completion: Completion, policy_version: int) -> None:
        """Take the tokens that the policy sampled. Afterwards the episode has ended, or waits for `advance`."""
        turn = Turn(
            observed=array("i", self._observed),
            sampled=array("i", completion.token_ids),
            logprobs=array("f", completion.logprobs),
            finish_reason=completion.finish_reason,
            policy_version=policy_version,
            kept=completion.kept,
            state=self._state,
            number=len(self._sampled),
            num_new=self._num_new,
        )
        branch = self._branch
        branch.turns = with_experts([*branch.turns, turn], completion.routing)
        self._sampled.append(branch.turns[-1])
        self._observed, self._num_new = (), None
        with self._alone():
            self._read(turn, branch)

    def _read(self, turn: Turn, branch: Branch) -> None:
        """Read what the policy said, and decide what follows."""
        read = self._conversing.read(tuple(turn.sampled), turn.finish_reason, len(self._sampled) - 1, branch.tools)
        branch.messages.append(read.message)
        branch.ends.append(len(branch.messages))
        self._messages.append(read.message)
        if turn.finish_reason == "length" and self._limits.ends_when_cut:
            self.ending = self._end_of_cut()
        elif read.unread is not None and not getattr(self._environment, "takes_unread", False):
            self._refuse(read)
        else:
            self._unread = 0

    @property
    def must_wait(self) -> bool:
        """True if the environment has something to do: it must begin, or answer."""
        return self.ending is None and (self._must_begin or not self._observed)

    def rollout(self) -> Rollout:
        """Return the episode. A broken one has the turns that it had, and an outcome that is no reward."""
        assert self.ending is not None
        rows = tuple(tuple(b.turns) for b in self._branches if any(turn.trains for turn in b.turns))
        counts = dict(sorted(self._counts.items())) | ({"retried": self.retries} if self.retries else {})
        episode = Episode(rows, tuple(self._messages), self.ending, self.outcome, self._answer, self.seed, counts)
        first = self._sampled[0] if self._sampled else Turn((), (), (), "length", -1)
        return Rollout(
            prompt_id=self.prompt.id,
            sample=self.sample,
            prompt_ids=first.observed,
            response_ids=first.sampled,
            logprobs=first.logprobs,
            text=self._first_text(),
            finish_reason=first.finish_reason,
            policy_version=first.policy_version,
            kept=first.kept,
            routing=first.routing,
            episode=episode,
        )

    def close(self) -> None:
        """Close the environment, if there is one. An error of that counts as a failure only while it is played."""
        environment, self._environment = self._environment, None
        if environment is None:
            return
        try:
            environment.close()
        except BaseException as exc:
            raise_if_operator(exc)
            self._counts["close_errors"] += 1
            if self.ending is None:
                self._failure = f"close: {told(exc)}"[:300]

    def _settle_failure(self, failure: str) -> bool:
        if self.retries < self._limits.retries:
            self.retries += 1
            self._reset()
            return False
        self._failure = None
        self._fail(failure)
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """End this episode, and no other, where what its environment brought cannot be shown or read."""
        try:
            yield
        except Exception as exc:  # e.g. the chat template refuses this order of roles
            self._fail(str(exc) if isinstance(exc, VerizeroError) else told(exc))

    def _fail(self, reason: str) -> None:
        self.ending, self.outcome = "failed", Verdict("environment_error", reason=reason[:300])

    def _settle_reply(self, reply: Reply) -> None:
        for use in reply.uses:
            self._counts[f"tools/{use.name}/calls"] += 1
            self._counts[f"tools/{use.name}/wrong"] += use.wrong
        self._counts.update(reply.counts)
        if reply.reward is not None:
            self._replace_last(replace(self._sampled[-1], reward=reply.reward))
        self._state = reply.state
        if reply.done:
            # The last words of an environment are for people and verifiers; no turn follows that would read them.
            self._messages += reply.messages
            self.ending, self.outcome, self._answer = "done", reply.outcome, reply.answer
        elif len(self._sampled) >= self._limits.max_turns:
            self._messages += reply.messages
            self.ending = "turns"
        elif self._limits.wall_s is not None and self._seconds > self._limits.wall_s:
            self.ending = "time"
        elif reply.history is not None:
            self._show_history(reply.history, self._branch.tools if reply.tools is None else reply.tools)
        else:
            self._show(tuple(map(self._shortened, reply.messages)))

    def _shortened(self, message: Message) -> Message:
        if self._limits.shorten is None:
            return message
        content = self._limits.shorten(message.content)
        if content == message.content:
            return message
        self._counts["observations/cut"] += 1
        return replace(message, content=content)

    def _refuse(self, read: Said) -> None:
        """Answer a call that could not be read with the reason, or end the episode."""
        self._unread += 1
        self._messages[-1] = replace(read.message, unread=read.unread)
        self._counts["tools/unread"] += 1
        if self._unread > self._limits.max_unread:
            self.ending = "unread"
        elif len(self._sampled) >= self._limits.max_turns:
            self.ending = "turns"
        else:
            assert read.unread is not None
            self._show((Message("user", read.unread),))

    def _show_history(self, history: tuple[Message, ...], tools: tuple[ToolSchema, ...]) -> None:
        """Continue the row that the history continues, or begin one."""
        place = continued(self._branches, history, tools)
        if place is None:
            self._counts["forks/history"] += 1
            self._messages += history
            self._branches.append(Branch(tools, list(foreign(history))))
            self._at = len(self._branches) - 1
            self._observed = self._conversing.begin(self.prompt, history, tools)
            self._end_if_full()
            return
        self._at, turn = place
        branch = self._branch
        if turn + 1 < len(branch.turns):
            self._counts["forks/branch"] += 1
            self._branches.append(branch.up_to(turn))
            self._at = len(self._branches) - 1
        self._show(history[self._branch.ends[turn] :])

    def _show(self, new: tuple[Message, ...]) -> None:
        """Prepare the prompt of the next turn; end the episode if it leaves no room."""
        branch = self._branch
        sampled, cut = [tuple(turn.sampled) for turn in branch.turns], branch.turns[-1].finish_reason
        following = self._conversing.extend(branch.messages, new, branch.tools, sampled, cut)
        self._messages += new
        if following.fork is None:
            self._continue_row(following)
        else:
            self._begin_row(following)
        self._branch.messages += foreign(new)
        self._end_if_full()

    def _end_if_full(self) -> None:
        if self._limits.max_tokens is not None and self._num_sampled() >= self._limits.max_tokens:
            self.ending = "tokens"
        elif self.room(1) < 1:
            self.ending = "context"

    def _continue_row(self, following: Next) -> None:
        if len(following.pieces) != 1 or following.pieces[0].turn is not None or not following.pieces[0].ids:
            raise EngineError(
                f"turn {self.turn} of the response {self.sample} to {self.prompt.id!r} continues its row with "
                f"{len(following.pieces)} pieces; expected one piece of observed tokens"
            )
        self._observed = following.pieces[0].ids

    def _begin_row(self, following: Next) -> None:
        """Begin a row of another history; sampled tokens that it repeats are context there, and do not train."""
        self._counts[f"forks/{following.fork}"] += 1
        before = self._branch
        row = Branch(before.tools, list(before.messages))
        observed: tuple[int, ...] = ()
        for piece in following.pieces:
            if piece.turn is None:
                observed += piece.ids
                continue
            earlier = before.turns[piece.turn]
            if piece.ids != tuple(earlier.sampled) or not observed:
                raise EngineError(
                    f"a new row of the response {self.sample} to {self.prompt.id!r} repeats turn {piece.turn} with "
                    "other tokens than were sampled, or without a prompt"
                )
            turn = replace(earlier, observed=array("i", observed), trains=False, reward=None, kept=None, routing=None)
            row.turns.append(turn)
            row.ends.append(before.ends[piece.turn])
            observed = ()
        self._branches.append(row)
        self._at = len(self._branches) - 1
        self._observed, self._num_new = observed, following.num_new

    def _replace_last(self, turn: Turn) -> None:
        self._sampled[-1] = self._branch.turns[-1] = turn

    def _end_of_cut(self) -> Ending:
        is_full = self._limits.context is not None and len(self.ids) >= self._limits.context
        return "context" if is_full else "tokens"

    def _num_sampled(self) -> int:
        return sum(len(turn.sampled) for turn in self._sampled)

    def _first_text(self) -> str:
        return next((m.content for m in self._messages if m.role == "assistant"), "")
