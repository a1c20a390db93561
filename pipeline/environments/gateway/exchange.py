"""One episode's side of the gateway: requests that wait for the policy, and answers that are given again to a retry."""

from __future__ import annotations

import hashlib
import json
import queue
import secrets
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pipeline.environments.base import CountPrompt
from pipeline.environments.gateway.wire import Answer, Asked, Body, Refused, cut_at
from pipeline.errors import DataError
from pipeline.types import Message


@dataclass
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

    def settle(self, outcome: Answer | Refused | int) -> None:
        """Give the answer, the refusal or the count to the one who waits."""
        if isinstance(outcome, Refused):
            self.refused = outcome
        elif isinstance(outcome, int):
            self.num_tokens = outcome
        else:
            self.answer = outcome
        self.done.set()


class Exchange:
    """The requests of one agent, and their answers. Its key opens nothing else, and nothing once it is sealed."""

    def __init__(self, number: int, address: str) -> None:
        """`address`: of the gateway, e.g. http://127.0.0.1:8700."""
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
            pending = Pending(replace(asked, messages=self._as_written(asked.messages)))
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
        except DataError as exc:
            outcome = Refused(400, str(exc))
        except Refused as exc:
            outcome = exc
        with self._lock:
            self._open.remove(pending)
        pending.settle(outcome)

    def give(self, pending: Pending, answer: Answer) -> None:
        """Answer a request. A text that the agent wanted to stop at ends the message that it gets."""
        message = answer.message
        cut = replace(message, content=cut_at(message.content, pending.asked.stop))
        with self._lock:
            self._open.remove(pending)
            if cut != message:
                self._originals.append((cut, message))
                self.counts["gateway/stopped"] += 1
            self._by_response[f"resp_{answer.id}"] = (*pending.asked.messages, message)
        pending.settle(replace(answer, message=cut))

    def refuse(self, pending: Pending, refused: Refused) -> None:
        """Answer a request with an error."""
        with self._lock:
            self._open.remove(pending)
        pending.settle(refused)

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
