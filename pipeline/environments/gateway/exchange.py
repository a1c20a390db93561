"""The requests of one episode at the gateway: those that wait for the policy, and answers that a retry gets again."""

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
from verizero.pipeline.environments.gateway.api import Answer, Body, TurnRequest, cut_at, num_chars
from verizero.pipeline.errors import DataError
from verizero.pipeline.service import Refused
from verizero.pipeline.types import Message

MAX_KEPT_CHARS = 4 << 20
"""Limit for the conversations that are kept, so that clients of a served model can continue one by its answer's id."""


@dataclass(eq=False)
class Pending:
    """A request and its outcome, once it has one: an answer, a refusal or a number of tokens.

    Example: Pending(request)
    """

    request: TurnRequest
    only_counts: bool = False
    """The request is for the number of tokens of its prompt, not for an answer."""
    num_tokens: int | None = None
    answer: Answer | None = None
    refused: Refused | None = None
    done: threading.Event = field(default_factory=threading.Event)
    digest: str = ""
    """Hash of the request."""
    is_abandoned: bool = False
    """The client has left, and the answer cannot be requested again."""
    _calls: list[Callable[[], None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def when_done(self, call: Callable[[], None]) -> None:
        """Call `call` when there is an outcome: at once if there is one already."""
        with self._lock:
            is_done = self.done.is_set()
            if not is_done:
                self._calls.append(call)
        if is_done:
            call()

    def settle(self, outcome: Answer | Refused | int) -> None:
        """Set the outcome, and call those who wait for it."""
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
    """The requests of one agent, and their answers. Its key is valid for this exchange only, until it is sealed."""

    def __init__(self, number: int, address: str, is_episode: bool = True) -> None:
        """`address`: of the gateway, e.g. http://127.0.0.1:8700.

        is_episode: True: all requests are of one episode, and a retry gets the answer that was made before. False: they
        are of any clients; an answered request is forgotten, but up to MAX_KEPT_CHARS of conversations that a later
        request may continue; and a request whose client leaves is dropped.
        """
        self.is_episode = is_episode
        self.key = secrets.token_hex(16)
        self.url = f"{address}/e/{number}"
        self.number = number
        self.requests: queue.SimpleQueue[Pending] = queue.SimpleQueue()
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._sealed: str | None = None
        self._open: list[Pending] = []
        self._by_body: dict[str, Pending] = {}
        self._by_response: dict[str, tuple[Message, ...]] = {}
        self._kept_chars = 0
        self._originals: list[tuple[Message, Message]] = []
        """For answers that a stop text cut: (the message that the agent got, the message that the policy wrote)."""

    def submit(self, path: str, body: Body, request: TurnRequest, is_retry: bool) -> Pending:
        """Put a request into the queue. A retry with the same body gets the answer to the first.

        Raises: Refused once the episode is sealed, or for an unknown `previous_response_id`.
        """
        digest = hashlib.sha256(json.dumps([path, body], sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
        with self._lock:
            if self._sealed is not None:
                raise Refused(409, f"the episode has ended: {self._sealed}")
            if is_retry and digest in self._by_body:
                self.counts["gateway/retries"] += 1
                return self._by_body[digest]
            if (before := body.get("previous_response_id")) is not None:
                if before not in self._by_response:
                    raise Refused(404, f"previous_response_id={before!r} is no answer of this episode")
                request = replace(request, messages=(*self._by_response[before], *request.messages))
            pending = Pending(replace(request, messages=self._as_written(request.messages)), digest=digest)
            self._open.append(pending)
            self._by_body[digest] = pending
            self.counts["gateway/requests"] += 1
            self.counts.update(f"gateway/ignored/{name}" for name in request.decided)
        self.requests.put(pending)
        return pending

    def submit_count(self, request: TurnRequest) -> Pending:
        """Put a request for the size of its prompt into the queue; it is no turn of the policy.

        Raises: Refused once the episode is sealed.
        """
        with self._lock:
            if self._sealed is not None:
                raise Refused(409, f"the episode has ended: {self._sealed}")
            pending = Pending(replace(request, messages=self._as_written(request.messages)), only_counts=True)
            self._open.append(pending)
        self.requests.put(pending)
        return pending

    def answer_count(self, pending: Pending, count: CountPrompt | None) -> None:
        """Answer a request for the size of its prompt. `count`: None if there is no tokenizer here."""
        outcome: int | Refused
        try:
            if count is None:
                raise Refused(
                    501,
                    "an agent with another place than here has no tokenizer that counts a prompt; leave place out, or "
                    "ask for an answer, whose usage has its tokens",
                )
            outcome = count(pending.request.messages, pending.request.tools)
        except Refused as exc:
            outcome = exc
        except Exception as exc:  # only this request fails: others wait in the same queue
            outcome = Refused(400 if isinstance(exc, DataError) else 500, f"{exc!s:.500}")
        with self._lock:
            self._close(pending)
        pending.settle(outcome)

    def answer(self, pending: Pending, answer: Answer) -> None:
        """Answer a request. The message that the agent gets ends before the first of its stop texts."""
        message = answer.message
        cut = replace(message, content=cut_at(message.content, pending.request.stop))
        with self._lock:
            self._close(pending)
            if cut != message and self.is_episode:
                self._originals.append((cut, message))
                self.counts["gateway/stopped"] += 1
            self._by_response[f"resp_{answer.id}"] = (*pending.request.messages, message)
            self._forget_old(answer.id)
        pending.settle(replace(answer, message=cut))

    def refuse(self, pending: Pending, refused: Refused) -> None:
        """Answer a request with an error."""
        with self._lock:
            self._close(pending)
        pending.settle(refused)

    def abandon(self, pending: Pending) -> None:
        """Drop a request whose client has left. In an episode it stays: a retry may still come."""
        if not self.is_episode:
            pending.is_abandoned = True
            self.refuse(pending, Refused(400, "the client has left"))

    def _close(self, pending: Pending) -> None:
        if pending in self._open:  # not after a seal
            self._open.remove(pending)
        if not self.is_episode:
            self._by_body.pop(pending.digest, None)

    def _forget_old(self, newest: str) -> None:
        """Forget the oldest conversations until the others have MAX_KEPT_CHARS characters at most."""
        if self.is_episode:
            return
        self._kept_chars += num_chars(self._by_response[f"resp_{newest}"])
        while self._kept_chars > MAX_KEPT_CHARS:
            self._kept_chars -= num_chars(self._by_response.pop(next(iter(self._by_response))))

    def seal(self, reason: str) -> None:
        """Refuse the requests that still wait, and all later ones."""
        with self._lock:
            self._sealed = reason
            waiting, self._open = self._open, []
        for pending in waiting:
            pending.settle(Refused(400, f"the episode has ended: {reason}"))

    def _as_written(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages; those that a stop text cut are whole again, because the row has all their tokens."""
        originals = dict(self._originals_by_text())
        return tuple(originals.get((m.content, len(m.calls)), m) if m.role == "assistant" else m for m in messages)

    def _originals_by_text(self) -> list[tuple[tuple[str, int], Message]]:
        return [((cut.content, len(cut.calls)), whole) for cut, whole in self._originals]
