"""One episode's side of the gateway: requests that wait for the policy, and answers that are given again to a retry."""

from __future__ import annotations

import hashlib
import json
import queue
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from verizero.pipeline.environments.base import CountPrompt
from verizero.pipeline.environments.gateway.wire import Answer, Asked, Body, cut_at, num_chars
from verizero.pipeline.errors import DataError
from verizero.pipeline.service import Refused
from verizero.pipeline.types import Message

KEPT_CHARS = 4 << 20
"""Characters of conversations that clients of a served model may continue by an answer's name."""


@dataclass(eq=False)
class Pending:
    """A request that waits for its answer.

    Example: Pending(asked)
    """

    asked: Asked
    only_counts: bool = False
    """Not an answer is wanted, but the number of tokens of the prompt."""
    num_tokens: int | None = None
    answer: Answer | None = None
    refused: Refused | None = None
    done: threading.Event = field(default_factory=threading.Event)
    digest: str = ""
    """Hash of the request."""
    is_left: bool = False
    """The one who asked has gone, and nobody may ask for the answer again."""
    _calls: list[Callable[[], None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def when_done(self, call: Callable[[], None]) -> None:
        """Have `call` called when there is an outcome: at once if there is one."""
        with self._lock:
            is_done = self.done.is_set()
            if not is_done:
                self._calls.append(call)
        if is_done:
            call()

    def settle(self, outcome: Answer | Refused | int) -> None:
        """Give the answer, the refusal or the count to the one who waits."""
        if isinstance(outcome, Refused):
            self.refused = outcome
        elif isinstance(outcome, int):
            self.num_tokens = outcome
        else:
            self.answer = outcome
        with self._lock:
            self.done.set()
            calls, self._calls = self._calls, []
        for call in calls:
            call()


class Exchange:
    """The requests of one agent, and their answers. Its key opens nothing else, and nothing once it is sealed."""

    def __init__(self, number: int, address: str, is_episode: bool = True) -> None:
        """`address`: of the gateway, e.g. http://127.0.0.1:8700.

        is_episode: the requests are of one episode, so that each may be repeated by a retry; else they are of any
        clients, nothing of a request stays when it is answered but KEPT_CHARS of answers to begin from, and one whose
        client leaves is dropped.
        """
        self.is_episode = is_episode
        self.key = secrets.token_hex(16)
        self.url = f"{address}/e/{number}"
        self.number = number
        self.asks: queue.SimpleQueue[Pending] = queue.SimpleQueue()
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._sealed: str | None = None
        self._open: list[Pending] = []
        self._by_body: dict[str, Pending] = {}
        self._by_response: dict[str, tuple[Message, ...]] = {}
        self._kept_chars = 0
        self._originals: list[tuple[Message, Message]] = []
        """(as the agent got it, as the policy wrote it), where a stop text cut the answer."""

    def ask(self, wire: str, body: Body, asked: Asked, is_retry: bool) -> Pending:
        """Put a request in line. A retry of the same body gets the first one's answer.

        Raises: Refused once the episode is sealed, or for an unknown `previous_response_id`.
        """
        digest = hashlib.sha256(json.dumps([wire, body], sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
        with self._lock:
            if self._sealed is not None:
                raise Refused(409, f"the episode has ended: {self._sealed}")
            if is_retry and digest in self._by_body:
                self.counts["gateway/retries"] += 1
                return self._by_body[digest]
            if (before := body.get("previous_response_id")) is not None:
                if before not in self._by_response:
                    raise Refused(404, f"previous_response_id={before!r} is no answer of this episode")
                asked = replace(asked, messages=(*self._by_response[before], *asked.messages))
            pending = Pending(replace(asked, messages=self._as_written(asked.messages)), digest=digest)
            self._open.append(pending)
            self._by_body[digest] = pending
            self.counts["gateway/requests"] += 1
            self.counts.update(f"gateway/ignored/{name}" for name in asked.decided)
        self.asks.put(pending)
        return pending

    def ask_count(self, asked: Asked) -> Pending:
        """Put a request for the size of its prompt in line, which is no turn.

        Raises: Refused once the episode is sealed.
        """
        with self._lock:
            if self._sealed is not None:
                raise Refused(409, f"the episode has ended: {self._sealed}")
            pending = Pending(replace(asked, messages=self._as_written(asked.messages)), only_counts=True)
            self._open.append(pending)
        self.asks.put(pending)
        return pending

    def give_count(self, pending: Pending, count: CountPrompt | None) -> None:
        """Answer a request for the size of its prompt; None: nothing here can count."""
        outcome: int | Refused
        try:
            if count is None:
                raise Refused(
                    501,
                    "an agent with another place than here has no tokenizer that counts a prompt; leave place out, or "
                    "ask for an answer, whose usage has its tokens",
                )
            outcome = count(pending.asked.messages, pending.asked.tools)
        except Refused as exc:
            outcome = exc
        except Exception as exc:  # of this request alone: others wait in the same line
            outcome = Refused(400 if isinstance(exc, DataError) else 500, f"{exc!s:.500}")
        with self._lock:
            self._close(pending)
        pending.settle(outcome)

    def give(self, pending: Pending, answer: Answer) -> None:
        """Answer a request. A text that the agent wanted to stop at ends the message that it gets."""
        message = answer.message
        cut = replace(message, content=cut_at(message.content, pending.asked.stop))
        with self._lock:
            self._close(pending)
            if cut != message and self.is_episode:
                self._originals.append((cut, message))
                self.counts["gateway/stopped"] += 1
            self._by_response[f"resp_{answer.id}"] = (*pending.asked.messages, message)
            self._forget_old(answer.id)
        pending.settle(replace(answer, message=cut))

    def refuse(self, pending: Pending, refused: Refused) -> None:
        """Answer a request with an error."""
        with self._lock:
            self._close(pending)
        pending.settle(refused)

    def leave(self, pending: Pending) -> None:
        """Note that the one who asked has gone. In an episode its retry may still come."""
        if not self.is_episode:
            pending.is_left = True
            self.refuse(pending, Refused(400, "the client has left"))

    def _close(self, pending: Pending) -> None:
        if pending in self._open:  # not after a seal
            self._open.remove(pending)
        if not self.is_episode:
            self._by_body.pop(pending.digest, None)

    def _forget_old(self, newest: str) -> None:
        """Forget the oldest answers that a later request may begin from, until the others are KEPT_CHARS long."""
        if self.is_episode:
            return
        self._kept_chars += num_chars(self._by_response[f"resp_{newest}"])
        while self._kept_chars > KEPT_CHARS:
            self._kept_chars -= num_chars(self._by_response.pop(next(iter(self._by_response))))

    def seal(self, reason: str) -> None:
        """Refuse all requests from now on, and those that still wait."""
        with self._lock:
            self._sealed = reason
            waiting, self._open = self._open, []
        for pending in waiting:
            pending.settle(Refused(400, f"the episode has ended: {reason}"))

    def _as_written(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages, those that a stop text cut as the policy wrote them: the row has all its tokens."""
        originals = dict(self._originals_by_text())
        return tuple(originals.get((m.content, len(m.calls)), m) if m.role == "assistant" else m for m in messages)

    def _originals_by_text(self) -> list[tuple[tuple[str, int], Message]]:
        return [((cut.content, len(cut.calls)), whole) for cut, whole in self._originals]
