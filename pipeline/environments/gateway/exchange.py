"""The requests of one episode at the gateway: those that wait for the policy, and answers that a retry gets again."""

from __future__ import annotations

import hashlib
import json
import queue
import secrets
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from verizero.pipeline.environments.gateway.chat import Answer, Body, TurnRequest, cut_at
from verizero.pipeline.host.service import Refused
from verizero.pipeline.types import Message


@dataclass(eq=False)
class Pending:
    """A request, and its outcome once it has one.

    Example: Pending(request)
    """

    request: TurnRequest
    outcome: Future[Answer | Refused] = field(default_factory=Future)


class Exchange:
    """The requests of one agent, and their answers. Its key is valid for this exchange only, until it is sealed."""

    def __init__(self, number: int, address: str) -> None:
        """`address`: of the gateway, e.g. http://127.0.0.1:8700."""
        self.key = secrets.token_hex(16)
        self.url = f"{address}/e/{number}"
        self.number = number
        self.requests: queue.SimpleQueue[Pending] = queue.SimpleQueue()
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._sealed: str | None = None
        self._open: list[Pending] = []
        self._by_body: dict[str, Pending] = {}
        self._originals: list[tuple[Message, Message]] = []
        """For answers that a stop text cut: (the message that the agent got, the message that the policy wrote)."""

    def submit(self, body: Body, request: TurnRequest, is_retry: bool) -> Pending:
        """Put a request into the queue. A retry with the same body gets the answer to the first.

        Raises: Refused once the episode is sealed.
        """
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
        with self._lock:
            if self._sealed is not None:
                raise Refused(409, f"the episode has ended: {self._sealed}")
            if is_retry and digest in self._by_body:
                self.counts["gateway/retries"] += 1
                return self._by_body[digest]
            pending = Pending(replace(request, messages=self._as_written(request.messages)))
            self._open.append(pending)
            self._by_body[digest] = pending
            self.counts["gateway/requests"] += 1
            self.counts.update(f"gateway/ignored/{name}" for name in request.decided)
        self.requests.put(pending)
        return pending

    def answer(self, pending: Pending, answer: Answer) -> None:
        """Answer a request. The message that the agent gets ends before the first of its stop texts."""
        message = answer.message
        cut = replace(message, content=cut_at(message.content, pending.request.stop))
        with self._lock:
            if pending not in self._open:
                return  # it was refused by a seal
            self._open.remove(pending)
            if cut != message:
                self._originals.append((cut, message))
                self.counts["gateway/stopped"] += 1
        pending.outcome.set_result(replace(answer, message=cut))

    def seal(self, reason: str) -> None:
        """Refuse the requests that still wait, and all later ones."""
        with self._lock:
            self._sealed = reason
            waiting, self._open = self._open, []
        for pending in waiting:
            pending.outcome.set_result(Refused(400, f"the episode has ended: {reason}"))

    def _as_written(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages; those that a stop text cut are whole again, because the row has all their tokens."""
        originals = {(cut.content, len(cut.calls)): whole for cut, whole in self._originals}
        return tuple(originals.get((m.content, len(m.calls)), m) if m.role == "assistant" else m for m in messages)
