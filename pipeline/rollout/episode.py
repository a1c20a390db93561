"""One open episode: its environment, its limits and its end. Its turns and rows are in `transcript.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from verizero.pipeline.environments.base import CountsTokens, Environment, Reply, Start, fault_of
from verizero.pipeline.environments.conversing import Conversing, ReadTurn
from verizero.pipeline.errors import EnvironmentFailed, VerizeroError, exception_text, raise_if_operator
from verizero.pipeline.rollout.engine import Completion
from verizero.pipeline.rollout.transcript import Transcript
from verizero.pipeline.types import Ending, Episode, Message, Prompt, Rollout, Turn, Verdict


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
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
    """Times that the episode may begin again after its environment broke."""
    shorten: Callable[[str], str] | None = None
    """Returns a message that is too long with its middle left out, and any other as it is."""


class OpenEpisode:
    """An episode that is being played. Call `advance`, `settle` and `take`, again and again, until `ending` is set.

    `advance` runs the environment, in any thread, and keeps its exceptions for `settle`. All other methods are called
    by one thread, so that results depend on the order of the episodes and not on time.
    """

    def __init__(
        self,
        prompt: Prompt,
        sample: int,
        make: Callable[[], Environment],
        conversing: Conversing,
        limits: EpisodeLimits,
        seed: int | None = None,
    ) -> None:
        """`make` returns a new environment of the same task and seeds each time; `seed` is the episode's own."""
        self.prompt, self.sample, self.seed = prompt, sample, seed
        self._make, self._conversing, self._limits = make, conversing, limits
        self._environment: Environment | None = None
        self.retries = 0
        """Times that the episode has begun again."""
        self._reset()

    def _reset(self) -> None:
        self.transcript = Transcript(self.prompt, self._conversing, f"the response {self.sample} to {self.prompt.id!r}")
        self.ending: Ending | None = None
        self.outcome: Verdict | None = None
        self._answer: str | None = None
        self._start: Start | None = None
        self._reply: Reply | None = None
        self._failure: str | None = None
        self._num_unread = 0
        self._seconds = 0.0
        self._must_begin = True

    @property
    def turn(self) -> int:
        """The number of the next turn, from 0."""
        return len(self.transcript.turns)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far."""
        return tuple(self.transcript.messages)

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens of the next turn's prompt."""
        return self.transcript.ids

    @property
    def awaits_environment(self) -> bool:
        """True if the environment has something to do: it must begin, or answer."""
        return self.ending is None and (self._must_begin or not self.transcript.observed)

    def room(self, max_turn_tokens: int) -> int:
        """Return the number of tokens that the next turn may sample."""
        limits = [max_turn_tokens]
        if self._limits.max_tokens is not None:
            limits.append(self._limits.max_tokens - self.transcript.num_sampled)
        if self._limits.context is not None:
            limits.append(self._limits.context - len(self.ids))
        return min(limits)

    def advance(self) -> None:
        """Let the environment begin, or answer the last message. Its exception, if any, is kept for `settle`."""
        start = time.perf_counter()
        try:
            if self._must_begin:
                self.close()
                self._environment = self._make()
                self._start = self._environment.start()
            else:
                assert self._environment is not None
                if isinstance(self._environment, CountsTokens):
                    last = self.transcript.branch.turns[-1]
                    sampled = len(last.sampled)
                    self._environment.count_tokens(len(self.ids) - sampled, sampled, last.finish_reason == "length")
                self._reply = self._environment.step(self.transcript.messages[-1])
                if fault := fault_of(self._reply):
                    raise EnvironmentFailed(f"the environment's answer {fault}")
        except BaseException as exc:
            # Any exception is a failure of the environment: mistakes of the policy come as replies.
            raise_if_operator(exc)
            self._failure = exception_text(exc)
        self._seconds += time.perf_counter() - start

    def settle(self) -> bool:
        """Take the result of `advance`. Return True if the next turn can be sampled, or the episode has ended.

        False: the environment broke, and the episode starts again with the same seeds.
        """
        if self._failure is not None:
            return self._settle_failure(self._failure)
        with self._failing_alone():
            if self._must_begin:
                self._settle_start()
            elif self._reply is not None:
                self._settle_reply(self._reply)
                self._reply = None
        return True

    def take(self, completion: Completion, policy_version: int) -> None:
        """Take the tokens that the policy sampled. Afterwards the episode has ended, or waits for `advance`."""
        self.transcript.add(completion, policy_version)
        with self._failing_alone():
            read = self.transcript.read()
            if completion.finish_reason == "length" and self._limits.ends_when_cut:
                is_full = self._limits.context is not None and len(self.ids) >= self._limits.context
                self.ending = "context" if is_full else "tokens"
            elif read.unread is not None and not getattr(self._environment, "takes_unread", False):
                self._refuse(read)
            else:
                self._num_unread = 0

    def rollout(self) -> Rollout:
        """Return the episode. One that broke has the turns up to there, and an outcome that gives no reward."""
        assert self.ending is not None
        transcript = self.transcript
        counts = dict(sorted(transcript.counts.items())) | ({"retried": self.retries} if self.retries else {})
        episode = Episode(transcript.rows, self.messages, self.ending, self.outcome, self._answer, self.seed, counts)
        first = transcript.turns[0] if transcript.turns else Turn((), (), (), "length", -1)
        return Rollout(
            prompt_id=self.prompt.id,
            sample=self.sample,
            prompt_ids=first.observed,
            response_ids=first.sampled,
            logprobs=first.logprobs,
            text=next((m.content for m in self.messages if m.role == "assistant"), ""),
            finish_reason=first.finish_reason,
            policy_version=first.policy_version,
            kept=first.kept,
            routing=first.routing,
            episode=episode,
        )

    def close(self) -> None:
        """Close the environment, if there is one. An error in it breaks the episode only before its end."""
        environment, self._environment = self._environment, None
        if environment is None:
            return
        try:
            environment.close()
        except BaseException as exc:
            raise_if_operator(exc)
            self.transcript.counts["close_errors"] += 1
            if self.ending is None:
                self._failure = f"close: {exception_text(exc)}"[:300]

    @contextmanager
    def _failing_alone(self) -> Iterator[None]:
        """End this episode, and no other, if its messages cannot be shown to the policy or its turn cannot be read."""
        try:
            yield
        except Exception as exc:  # e.g. the chat template refuses this order of roles
            self._fail(str(exc) if isinstance(exc, VerizeroError) else exception_text(exc))

    def _fail(self, reason: str) -> None:
        self.ending, self.outcome = "failed", Verdict("environment_error", reason=reason[:300])

    def _settle_failure(self, failure: str) -> bool:
        if self.retries < self._limits.retries:
            self.retries += 1
            self._reset()
            return False
        self._failure = None
        self._fail(failure)
        return True

    def _settle_start(self) -> None:
        assert self._start is not None
        self._must_begin = False
        self.transcript.begin(self._start)
        if self.room(1) < 1:
            self._fail(f"a first prompt of {len(self.ids)} tokens in a context of {self._limits.context}")

    def _settle_reply(self, reply: Reply) -> None:
        transcript = self.transcript
        for use in reply.uses:
            transcript.counts[f"tools/{use.name}/calls"] += 1
            transcript.counts[f"tools/{use.name}/wrong"] += use.wrong
        transcript.counts.update(reply.counts)
        if reply.reward is not None:
            transcript.reward_last(reply.reward)
        if reply.done:
            # The last words of an environment are for people and verifiers; no turn follows that would read them.
            transcript.messages += reply.messages
            self.ending, self.outcome, self._answer = "done", reply.outcome, reply.answer
        elif self.turn >= self._limits.max_turns:
            transcript.messages += reply.messages
            self.ending = "turns"
        elif self._limits.wall_s is not None and self._seconds > self._limits.wall_s:
            self.ending = "time"
        elif reply.history is not None:
            transcript.continue_with(reply.history, transcript.branch.tools if reply.tools is None else reply.tools)
            self._end_if_full()
        else:
            transcript.show(tuple(map(self._shortened, reply.messages)))
            self._end_if_full()

    def _shortened(self, message: Message) -> Message:
        if self._limits.shorten is None:
            return message
        content = self._limits.shorten(message.content)
        if content == message.content:
            return message
        self.transcript.counts["observations/cut"] += 1
        return replace(message, content=content)

    def _refuse(self, read: ReadTurn) -> None:
        """Answer a call that could not be read with the reason, or end the episode."""
        assert read.unread is not None
        transcript = self.transcript
        self._num_unread += 1
        transcript.messages[-1] = replace(read.message, unread=read.unread)
        transcript.counts["tools/unread"] += 1
        if self._num_unread > self._limits.max_unread:
            self.ending = "unread"
        elif self.turn >= self._limits.max_turns:
            self.ending = "turns"
        else:
            transcript.show((Message("user", read.unread),))
            self._end_if_full()

    def _end_if_full(self) -> None:
        if self._limits.max_tokens is not None and self.transcript.num_sampled >= self._limits.max_tokens:
            self.ending = "tokens"
        elif self.room(1) < 1:
            self.ending = "context"
