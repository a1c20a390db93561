"""The HTTP server of the gateway: one address and one key for each episode, on loopback only.

An exchange takes an agent's requests to the policy.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import queue
import secrets
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from verizero.pipeline.environments.gateway import chat
from verizero.pipeline.environments.gateway.chat import Answer, Body, TurnRequest, cut_at
from verizero.pipeline.host.service import Refused, Service, parsed, same_key
from verizero.pipeline.types import Message

CHAT = "chat/completions"
"""Path below the episode's address."""
KEEP_ALIVE_S = 3.0
"""Seconds between the comments that keep a waiting stream open."""
MAX_BODY = 8 << 20
"""The most bytes of a request."""
MODEL = "policy"
RETRY_HEADERS = ("x-stainless-retry-count", "x-retry-count")


class Gateway:
    """Serves the exchanges of all open episodes by HTTP."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Port 0: any free one."""
        self._numbers = itertools.count(1)
        self._exchanges: dict[int, Exchange] = {}
        self._lock = threading.Lock()
        self._service = Service(self._answer, host, port, admits=self._admits, error=chat.error, max_body=MAX_BODY)
        self.address = self._service.address
        self._service.__enter__()

    def open(self) -> Exchange:
        """Return a new exchange, for an episode."""
        with self._lock:
            exchange = Exchange(next(self._numbers), self.address)
            self._exchanges[exchange.number] = exchange
        return exchange

    def forget(self, exchange: Exchange) -> None:
        """Seal the exchange, and answer 404 at its address from now on."""
        exchange.seal("closed")
        with self._lock:
            self._exchanges.pop(exchange.number, None)

    def find(self, number: str, key: str) -> Exchange:
        """Return an exchange by its number. Raises: Refused if there is none, or its key is another one."""
        with self._lock:
            exchange = self._exchanges.get(int(number)) if number.isdecimal() and len(number) < 20 else None
        # Compared in any case, so that the time of the answer does not show which numbers exist.
        is_key = same_key(key, exchange.key if exchange is not None else "")
        if exchange is None or not is_key:
            raise Refused(401, "the key is not that of an open episode")
        return exchange

    def close(self) -> None:
        """Seal all exchanges, and end the server."""
        for exchange in list(self._exchanges.values()):
            self.forget(exchange)
        self._service.close()

    def _admits(self, path: str, key: str) -> None:
        self.find(_split_path(path)[0], key)

    async def _answer(self, request: Request, body: bytes) -> Response:
        number, path = _split_path(request.url.path)
        with self._lock:
            exchange = self._exchanges.get(int(number))
        if exchange is None:
            raise Refused(401, "the key is not that of an open episode")
        if request.method == "GET":
            if path != "models":
                raise Refused(404, f"no GET {path}; there is models")
            model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "local"}
            return _json({"object": "list", "data": [model]})
        if request.method != "POST" or path != CHAT:
            raise Refused(404, f"no {request.method} {path}; there is {CHAT}")
        # In a thread: other clients are answered meanwhile.
        pending = await asyncio.to_thread(_submit, exchange, request, body)
        outcome = asyncio.wrap_future(pending.outcome)
        # `wait` leaves the outcome alone where this client leaves: a retry may still come.
        await asyncio.wait([outcome], timeout=KEEP_ALIVE_S if pending.request.stream else None)
        settled = outcome.result() if outcome.done() else None
        if isinstance(settled, Refused):
            raise settled
        if pending.request.stream:
            return StreamingResponse(
                _events(pending), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
            )
        assert settled is not None
        return _json(chat.write(pending.request, settled))


def _submit(exchange: Exchange, request: Request, body: bytes) -> Pending:
    """Read the body, and put its request into the queue of the exchange. Raises: Refused."""
    content = parsed(body)
    turn = chat.read(content)
    is_retry = any((request.headers.get(name) or "0") != "0" for name in RETRY_HEADERS)
    return exchange.submit(content, turn, is_retry)


def _split_path(path: str) -> tuple[str, str]:
    """Return the number of the episode and the path below its address. Raises: Refused for any other path."""
    parts = path.strip("/").split("/", 2)
    if len(parts) < 3 or parts[0] != "e" or not parts[1].isascii():
        raise Refused(404, f"no {path:.200}; an episode's address is /e/NUMBER/v1")
    return parts[1], parts[2].removeprefix("v1/")


def _json(answer: dict[str, Any]) -> Response:
    return Response(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace"), media_type="application/json")


async def _events(pending: Pending) -> AsyncIterator[bytes]:
    """Yield the answer as events once it is whole; comments before it keep the connection open."""
    outcome = asyncio.wrap_future(pending.outcome)
    while not (await asyncio.wait([outcome], timeout=KEEP_ALIVE_S))[0]:
        yield b": the policy is writing\n\n"
    answer = outcome.result()
    if isinstance(answer, Refused):
        yield f"event: error\ndata: {json.dumps(chat.error(answer))}\n\n".encode()
        return
    for data in chat.events(pending.request, answer):
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        yield f"data: {text}\n\n".encode("utf-8", "replace")


@dataclass(eq=False)
class Pending:
    """A request, and its outcome once it has one."""

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
        """Queue a request; a retry with the same body gets the first's answer. Raises: Refused once it is sealed."""
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
