"""The HTTP server of the gateway: one address and one key for each episode, on loopback only."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from verizero.pipeline.environments.gateway import chat
from verizero.pipeline.environments.gateway.exchange import Exchange, Pending
from verizero.pipeline.host.service import Refused, Service, parsed, same_key

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
            return _models(path)
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


def _models(path: str) -> Response:
    if path != "models":
        raise Refused(404, f"no GET {path}; there is models")
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "local"}
    return _json({"object": "list", "data": [model]})


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
