"""The HTTP server of the gateway: one address and one key for each episode, on loopback only."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
from collections.abc import AsyncIterator, Iterable
from types import ModuleType
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from verizero.pipeline.environments.gateway import chat, messages, responses
from verizero.pipeline.environments.gateway.api import Event, TurnRequest
from verizero.pipeline.environments.gateway.exchange import Exchange, Pending
from verizero.pipeline.service import Refused, Service, parsed, same_key

APIS: dict[str, ModuleType] = {"chat/completions": chat, "responses": responses, "messages": messages}
"""Path below the episode's address -> the API."""
COUNT = "messages/count_tokens"
"""Path of requests for the size of a prompt."""
KEEP_ALIVE_S = 3.0
"""Seconds between the comments that keep a waiting stream open."""
CLIENT_CHECK_S = 0.25
"""Seconds between two checks whether a waiting client is still connected."""
MODEL = "policy"
RETRY_HEADERS = ("x-stainless-retry-count", "x-retry-count")


class Gateway:
    """Serves the exchanges of all open episodes by HTTP."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Port 0: any free one."""
        self._numbers = itertools.count(1)
        self._exchanges: dict[int, Exchange] = {}
        self._lock = threading.Lock()
        self._service = Service(self._answer, host, port, admits=self._admits, error=_error)
        self.address = self._service.address
        self._service.__enter__()

    def open(self, is_episode: bool = True) -> Exchange:
        """Return a new exchange: for an episode, or for a model that is served to any clients."""
        with self._lock:
            exchange = Exchange(next(self._numbers), self.address, is_episode)
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
        if request.method != "POST" or path not in (*APIS, COUNT):
            raise Refused(404, f"no {request.method} {path}; there are {', '.join([*APIS, COUNT])}")
        content = parsed(body)
        if path == COUNT:
            pending = exchange.submit_count(messages.read(content))
            await _wait_for_outcome(pending, exchange, request)
            return _json(messages.write_count(pending.num_tokens or 0))
        api = APIS[path]
        turn: TurnRequest = api.read(content)
        is_retry = any((request.headers.get(name) or "0") != "0" for name in RETRY_HEADERS)
        pending = exchange.submit(path, content, turn, is_retry)
        if turn.stream:
            if await _is_set_within(_outcome_event(pending), KEEP_ALIVE_S) and pending.refused is not None:
                raise pending.refused  # early enough for a status of its own
            return StreamingResponse(
                _events(api, pending, exchange), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
            )
        await _wait_for_outcome(pending, exchange, request)
        return _json(api.write(pending.request, pending.answer))


def _split_path(path: str) -> tuple[str, str]:
    """Return the number of the episode and the path below its address. Raises: Refused for any other path."""
    parts = path.strip("/").split("/", 2)
    if len(parts) < 3 or parts[0] != "e" or not parts[1].isascii():
        raise Refused(404, f"no {path:.200}; an episode's address is /e/NUMBER/v1")
    return parts[1], parts[2].removeprefix("v1/")


def _error(path: str, refused: Refused) -> dict[str, Any]:
    """Return a refusal in the form of the API at `path`."""
    below = path.strip("/").split("/", 2)[-1].removeprefix("v1/")
    answer: dict[str, Any] = APIS.get("messages" if below == COUNT else below, chat).error(refused)
    return answer


def _models(path: str) -> Response:
    if path != "models":
        raise Refused(404, f"no GET {path}; there is models")
    model = {
        "id": MODEL,
        "object": "model",
        "created": 0,
        "owned_by": "local",
        "type": "model",
        "display_name": MODEL,
    }
    return _json({"object": "list", "data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL})


def _json(answer: dict[str, Any]) -> Response:
    return Response(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace"), media_type="application/json")


def _outcome_event(pending: Pending) -> asyncio.Event:
    """Return an event of this loop that is set when there is an outcome."""
    loop, is_done = asyncio.get_running_loop(), asyncio.Event()

    def set_event() -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(is_done.set)

    pending.when_done(set_event)
    return is_done


async def _is_set_within(is_done: asyncio.Event, seconds: float) -> bool:
    """Wait for the event for `seconds` at most; return True if it is set."""
    try:
        await asyncio.wait_for(is_done.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def _wait_for_outcome(pending: Pending, exchange: Exchange, request: Request) -> None:
    """Wait for the outcome. Raises: Refused if it is a refusal, or the client has left."""
    is_done = _outcome_event(pending)
    while not await _is_set_within(is_done, CLIENT_CHECK_S):
        if await request.is_disconnected():
            exchange.abandon(pending)
    if pending.refused is not None:
        raise pending.refused


async def _events(api: ModuleType, pending: Pending, exchange: Exchange) -> AsyncIterator[bytes]:
    """Yield the answer as events once it is whole; comments before it keep the connection open."""
    is_done = _outcome_event(pending)
    try:
        while not await _is_set_within(is_done, KEEP_ALIVE_S):
            yield b": the policy is writing\n\n"
    finally:
        if not pending.done.is_set():  # the generator is closed when the client leaves
            exchange.abandon(pending)
    if pending.answer is not None:
        events: Iterable[Event] = api.events(pending.request, pending.answer)
    else:
        assert pending.refused is not None
        events = [("error", api.error(pending.refused))]
    for name, data in events:
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        yield ((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode("utf-8", "replace")
