"""The HTTP server of the gateway: one address and one key for each episode, on loopback only."""

from __future__ import annotations

import hmac
import itertools
import json
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any

from pipeline.environments.gateway import chat, messages, responses
from pipeline.environments.gateway.exchange import Exchange, Pending
from pipeline.environments.gateway.wire import Asked, Body, Event, Refused

WIRES: dict[str, ModuleType] = {"chat/completions": chat, "responses": responses, "messages": messages}
"""Path below the episode's address -> the wire."""
COUNT = "messages/count_tokens"
"""Path of requests for the size of a prompt alone."""
MAX_BODY = 64 << 20
ALIVE_S = 3.0
"""Seconds between the comments that keep a waiting stream open."""
MODEL = "policy"
RETRY_HEADERS = ("x-stainless-retry-count", "x-retry-count")


class Gateway:
    """Serves the exchanges of all open episodes."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Port 0: any free one."""
        gateway = self

        class Handler(_Handler):
            pass

        Handler.gateway = gateway
        self._server = _Server((host, port), Handler)
        self.address = f"http://{host}:{self._server.server_address[1]}"
        self._numbers = itertools.count(1)
        self._exchanges: dict[int, Exchange] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._server.serve_forever, name="gateway", daemon=True)
        self._thread.start()

    def open(self) -> Exchange:
        """Return the exchange of a new episode."""
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
            exchange = self._exchanges.get(int(number)) if number.isdecimal() else None
        # Compared in any case, so that the time tells nothing of which numbers exist.
        is_key = hmac.compare_digest(key.encode(), (exchange.key if exchange is not None else "").encode())
        if exchange is None or not is_key:
            raise Refused(401, "the key is not that of an open episode")
        return exchange

    def close(self) -> None:
        """Seal all exchanges, and end the server."""
        for exchange in list(self._exchanges.values()):
            self.forget(exchange)
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


class _Handler(BaseHTTPRequestHandler):
    gateway: Gateway
    protocol_version = "HTTP/1.1"
    # Without it each small answer waits for the acknowledgement of its header.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer `GET models`."""
        self._serve(self._list_models)

    def do_POST(self) -> None:
        """Answer a request of one of the wires."""
        self._serve(self._complete)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: an agent's requests are in the run's files."""

    def _serve(self, act: Callable[[Exchange, str], None]) -> None:
        wire = chat
        try:
            body_left = int(self.headers.get("Content-Length") or 0)
            parts = self.path.partition("?")[0].strip("/").split("/", 2)
            if len(parts) < 3 or parts[0] != "e":
                raise Refused(404, f"no {self.path}; an episode's address is /e/NUMBER/v1")
            path = parts[2].removeprefix("v1/")
            wire = WIRES.get("messages" if path == COUNT else path, chat)
            if body_left > MAX_BODY:
                self.close_connection = True
                raise Refused(413, f"the request has {body_left} bytes, at most {MAX_BODY} are read")
            act(self.gateway.find(parts[1], self._key()), path)
        except Refused as refused:
            self._discard_body()
            self._send(refused.status, wire.error(refused))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _key(self) -> str:
        return self.headers.get("x-api-key") or (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _list_models(self, exchange: Exchange, path: str) -> None:
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
        self._send(200, {"object": "list", "data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL})

    def _complete(self, exchange: Exchange, path: str) -> None:
        if path == COUNT:
            self._count(exchange)
            return
        if path not in WIRES:
            raise Refused(404, f"no POST {path}; there are {', '.join([*WIRES, COUNT])}")
        wire = WIRES[path]
        body = self._body()
        asked: Asked = wire.read(body)
        is_retry = any((self.headers.get(name) or "0") != "0" for name in RETRY_HEADERS)
        pending = exchange.ask(path, body, asked, is_retry)
        if asked.stream:
            self._stream(wire, pending)
            return
        pending.done.wait()
        if pending.answer is None:
            assert pending.refused is not None
            raise pending.refused
        self._send(200, wire.write(pending.asked, pending.answer))

    def _count(self, exchange: Exchange) -> None:
        pending = exchange.ask_count(messages.read(self._body()))
        pending.done.wait()
        if pending.num_tokens is None:
            assert pending.refused is not None
            raise pending.refused
        self._send(200, messages.write_count(pending.num_tokens))

    def _stream(self, wire: ModuleType, pending: Pending) -> None:
        """Send the answer as events once it is whole; comments before it keep the connection open."""
        if pending.done.wait(ALIVE_S) and pending.refused is not None:
            raise pending.refused  # early enough for a status of its own
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while not pending.done.is_set():
            self._chunk(b": the policy is writing\n\n")
            pending.done.wait(ALIVE_S)
        if pending.answer is not None:
            events: Iterable[Event] = wire.events(pending.asked, pending.answer)
        else:
            assert pending.refused is not None
            events = [("error", wire.error(pending.refused))]
        for name, data in events:
            text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
            self._chunk(((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode("utf-8", "replace"))
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _body(self) -> Body:
        if self.headers.get("Transfer-Encoding"):
            self.close_connection = True
            raise Refused(411, "send the request with a Content-Length")
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._read = True
        try:
            body = json.loads(data)
        except ValueError as exc:
            raise Refused(400, f"the request is no JSON: {exc}") from exc
        if not isinstance(body, dict):
            raise Refused(400, f"the request must be a JSON object, got {type(body).__name__}")
        return body

    def _discard_body(self) -> None:
        """Leave the connection usable after a refusal that came before its body was read."""
        if not self.__dict__.pop("_read", False) and not self.close_connection:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        self.__dict__.pop("_read", None)
        data = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
