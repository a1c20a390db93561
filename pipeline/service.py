"""The server under the project's HTTP services: uvicorn, within limits that hold for every client.

    def answer(request: Request, body: bytes) -> Response:  # in a thread; `async def` runs in the server's loop
        number = checked(Numbers, parsed(body)).number      # raises Refused, as `answer` itself may
        return JSONResponse({"double": 2 * number})

    with Service(answer) as service:                        # answers until the block ends
        print(service.address, service.token)
    Service(answer, port=8080, token="...").run()           # answers until SIGINT or SIGTERM

Before `answer` is called, the request has passed these checks, and its body is read whole: Host and Origin are the
service's own, the key in `Authorization: Bearer` or `x-api-key` is right, the body is not too long and came in time.
Whatever `answer` raises becomes an answer to that client alone. To stream, return starlette's `StreamingResponse` from
an `async def`: its generator is cancelled when the client leaves, as `await request.is_disconnected()` also tells.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import ipaddress
import logging
import reprlib
import resource
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

import h11
import uvicorn
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_BODY = 64 << 20
"""Bytes of a request's body."""
MAX_CONNECTIONS = min(512, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
"""Connections at one time. A new one takes the place of the one that has waited longest without a request."""
IDLE_S = 15.0
"""Seconds in which a connection must send the head of a request, and in which it may wait for its next one."""
BODY_S = 60.0
"""Seconds in which a body must have come."""
STUCK_S = 60.0
"""Seconds for which a client may leave its answer unread."""
LINGER_S = 1.0
"""Seconds in which a refused body is read and dropped: closed at once, its client would not see the refusal."""
GRACE_S = 5
"""Seconds that requests have to end when the service ends."""
RULES = "at most 200 levels, 4,300 digits a number, no NaN, no half of a surrogate pair, UTF-8"
"""Rules of JSON that a body must meet besides its grammar."""

_log = logging.getLogger(__name__)
Answer = Callable[[Request, bytes], Response | Awaitable[Response]]
Model = TypeVar("Model", bound=BaseModel)


class Refused(Exception):
    """A request that is answered with an HTTP status of 400 or more."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def parsed(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. Raises: Refused with 400 and the place."""
    try:
        data = from_json(body, allow_inf_nan=False)
    except ValueError as exc:
        raise Refused(400, f"the body cannot be read as JSON: {exc}; it may have {RULES}") from exc
    if not isinstance(data, dict):
        raise Refused(400, f"the body must be a JSON object, got {reprlib.repr(data)}")
    return data


def checked(model: type[Model], data: Any, status: int = 400) -> Model:
    """Return the data as that model. Raises: Refused with `status`, the fields, and what each must be."""
    try:
        return model.model_validate(data)
    except ValidationError as exc:
        raise Refused(status, "; ".join(_words(dict(error)) for error in exc.errors(include_url=False)[:3])) from exc


def _words(error: dict[str, Any]) -> str:
    """Return one error of a model: the field, what is wrong, and the value."""
    field = ".".join(map(str, error["loc"])) or "the body"
    if error["type"] == "missing":
        return f"{field} is missing"
    if error["type"] == "extra_forbidden":
        return f"{field} is an unknown field; remove it"
    return f"{field}: {error['msg'].removeprefix('Value error, ')}, got {reprlib.repr(error['input'])}"


def same_key(key: str, wanted: str) -> bool:
    """True if both are equal; the time that it takes does not tell how much of them is."""
    return hmac.compare_digest(key.encode("utf-8", "replace"), wanted.encode("utf-8", "replace"))


def plain_error(path: str, refused: Refused) -> dict[str, Any]:
    """Return the body of a refusal."""
    return {"error": refused.message}


class Service:
    """An HTTP service on one address: in a thread as a context manager, or in the foreground by `run`."""

    def __init__(
        self,
        answer: Answer,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        admits: Callable[[str, str], None] | None = None,
        error: Callable[[str, Refused], dict[str, Any]] = plain_error,
        max_body: int = MAX_BODY,
    ) -> None:
        """Bind the address; port 0 is any free one. Without a token one is made.

        `admits(path, key)` raises Refused for a key that may not enter there; by default the key is the token.
        `error` writes the body of a refusal. Raises: OSError when the address cannot be had.
        """
        self.answer, self.error, self.max_body = answer, error, max_body
        self.token = token or secrets.token_urlsafe(32)
        self.admits = admits or self._admits_token
        self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        bound, self.port = self._socket.getsockname()[:2]
        self.address = f"http://[{bound}]:{self.port}" if ":" in bound else f"http://{bound}:{self.port}"
        self._is_local = ipaddress.ip_address(bound).is_loopback
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, "http")
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="http", daemon=True)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app, http=_Connection, ws="none", lifespan="off", interface="asgi3", log_config=None,
                log_level="critical", access_log=False, server_header=False, backlog=128,
                timeout_keep_alive=int(IDLE_S), timeout_graceful_shutdown=GRACE_S,
            )
        )  # fmt: skip

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self) -> None:
        """Answer until SIGINT or SIGTERM. Requests that are being answered then have GRACE_S to end."""
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            asyncio.run(self._serve())
        except KeyboardInterrupt:
            pass  # uvicorn raises the signal again after it has ended the requests
        finally:
            signal.signal(signal.SIGTERM, before)
            self.close()

    def close(self) -> None:
        """End the service: no new requests, GRACE_S for those that are being answered."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _serve(self) -> None:
        await self._server.serve([self._socket])

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens; what fails after an answer has begun ends its connection."""
        request, body, has_begun = Request(scope, receive), None, False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            self._check(request)
            body = await self._body(request, receive)
            if body is None:
                return
            response = await self._answer(request, body)
            await response(scope, receive, sending)
        except (Exception, KeyboardInterrupt, SystemExit) as exc:
            if has_begun:
                raise
            if not isinstance(exc, Refused):
                _log.error("%s %s failed", request.method, request.url.path, exc_info=exc)
            refused = exc if isinstance(exc, Refused) else Refused(500, f"the service failed: {type(exc).__name__}")
            response = JSONResponse(self.error(request.url.path, refused), refused.status)
            if refused.status == 429:
                response.headers["Retry-After"] = "1"
            if body is None:
                await _refuse_unread(response, request, receive, send)
            else:
                await response(scope, receive, send)

    def _check(self, request: Request) -> None:
        """Check everything that the head of a request tells. Raises: Refused."""
        headers = request.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        # Behind an address that others reach, the service does not know its names, and only the key decides.
        if self._is_local and not _is_loopback(host):
            raise Refused(421, f"Host {host!r} is not this service; ask for {self.address}")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise Refused(403, f"pages of {origin!r} may not use this service")
        scheme, _, key = headers.get("authorization", "").partition(" ")
        self.admits(request.url.path, key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", ""))
        if "transfer-encoding" in headers and "content-length" in headers:
            raise Refused(400, "a request has Content-Length or Transfer-Encoding, not both")
        length = int(headers.get("content-length", "0"))  # h11 has let through nothing but digits
        if length > self.max_body:
            raise Refused(413, f"the body may have {self.max_body} bytes, Content-Length is {length}")

    def _admits_token(self, path: str, key: str) -> None:
        if not same_key(key, self.token):
            raise Refused(401, "the Authorization header must be: Bearer <token>")

    async def _body(self, request: Request, receive: Receive) -> bytes | None:
        """Return the body, None if the client has left. Raises: Refused if it is too long or too slow."""
        parts, length = [], 0
        try:
            async with asyncio.timeout(BODY_S):
                while (message := await receive())["type"] == "http.request":
                    parts.append(message.get("body", b""))
                    length += len(parts[-1])
                    if length > self.max_body:
                        raise Refused(413, f"the body may have {self.max_body} bytes, this one has more")
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError as exc:
            raise Refused(408, f"the body must come within {BODY_S:g} seconds") from exc
        return None

    async def _answer(self, request: Request, body: bytes) -> Response:
        if inspect.iscoroutinefunction(self.answer):
            return await self.answer(request, body)  # type: ignore[no-any-return]
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(self._threads, self.answer, request, body)
        assert isinstance(response, Response)
        return response


async def _refuse_unread(response: Response, request: Request, receive: Receive, send: Send) -> None:
    """Send a refusal, read and drop the body for LINGER_S, and close the connection."""
    response.headers["Connection"] = "close"
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    # Not of chunks, which can be a byte each and cost more to read than to send.
    if "content-length" in request.headers:
        try:
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        except TimeoutError:
            pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _is_loopback(host: str) -> bool:
    """True if a Host header names this machine as programs on it do."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class _Clock:
    """A time after which a connection is cut, unless the clock is stopped before or the client still reads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, seconds: float) -> None:
        self._loop, self._transport, self._seconds = loop, transport, seconds
        self._timer: asyncio.TimerHandle | None = None

    @property
    def due(self) -> float | None:
        """Return the time of the loop at which the connection is cut; None while the clock is stopped."""
        return None if self._timer is None else self._timer.when()

    def start(self) -> None:
        """Count from now."""
        self._start(sys.maxsize)

    def _start(self, num_unsent: int) -> None:
        self.stop()
        self._timer = self._loop.call_later(self._seconds, self._ring, num_unsent)

    def stop(self) -> None:
        """Count no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _ring(self, num_unsent_before: int) -> None:
        num_unsent = self._transport.get_write_buffer_size()
        if 0 < num_unsent < num_unsent_before:
            self._start(num_unsent)
        else:
            self._transport.abort()


class _Connection(H11Protocol):
    """A client's connection, which is cut if the client is slow to ask or to read."""

    is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.idle, self.stuck = (_Clock(self.loop, transport, seconds) for seconds in (IDLE_S, STUCK_S))
        self.idle.start()
        if len(self.connections) > MAX_CONNECTIONS:
            live = [c for c in self.connections if isinstance(c, _Connection) and not c.transport.is_closing()]
            if len(live) > MAX_CONNECTIONS:
                # One waits at least: this.
                min((c.idle.due, id(c), c) for c in live if c.idle.due is not None)[2].transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.stop()
        self.stuck.stop()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Do what has come, and stop the clock when a request begins."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self.idle.stop()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.idle.start()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Give the client some time to read."""
        self.stuck.start()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Stop the clock of `pause_writing`."""
        self.stuck.stop()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Take in what has come, or drop it if nothing is answered any more."""
        if not self.is_refused:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP with h11's reason, unless an answer has begun, and read no more of it."""
        self.is_refused = True
        reason = ascii(f"{msg} {sys.exc_info()[1]}").strip("'\"").encode()
        headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(reason))), ("Connection", "close")]
        try:
            reply = self.conn.send(h11.Response(status_code=400, headers=headers, reason=b"Bad Request"))
        except h11.LocalProtocolError:
            self.transport.abort()
            return
        self.transport.write((reply or b"") + reason)
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.abort)
