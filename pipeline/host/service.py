"""The server of all HTTP services of the project: uvicorn, with limits for every client.

    def answer(request: Request, body: bytes) -> Response:  # in a thread; `async def` runs in the server's loop
        number = checked(Numbers, parsed(body)).number      # raises Refused, as `answer` itself may
        return JSONResponse({"double": 2 * number})

    with Service(answer) as service:                        # answers until the block ends
        print(service.address, service.token)
    Service(answer, port=8080, token="...").run()           # answers until SIGINT or SIGTERM

Before `answer` is called, the body is read whole and the request is checked: Host and Origin are the service's own, the
key in `Authorization: Bearer` is right, the body is not too long and came in time. An exception of
`answer` becomes an error for that client only. To stream, return starlette's `StreamingResponse` from an `async def`;
its generator is cancelled when the client leaves, and `await request.is_disconnected()` is then True.
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

from verizero.pipeline.host.network import MAX_BODY

MAX_CONNECTIONS = min(512, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
"""The most connections at a time. A further one replaces the one that has been idle longest."""
IDLE_S = 15.0
"""Seconds within which a connection must send the head of a request, the first or the next one."""
BODY_S = 60.0
"""Seconds within which a body must arrive."""
GRACE_S = 5
"""Seconds that open requests have when the service ends."""
JSON_RULES = "at most 200 levels, 4,300 digits a number, no NaN, no half of a surrogate pair, UTF-8"
"""Rules for the JSON of a body, further to its grammar."""

_log = logging.getLogger(__name__)
Handler = Callable[[Request, bytes], Response | Awaitable[Response]]
Model = TypeVar("Model", bound=BaseModel)


class Refused(Exception):
    """A request that is answered with an HTTP status of 400 or more."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def parsed(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. Raises: Refused with 400 and the position of the error."""
    try:
        data = from_json(body, allow_inf_nan=False)
    except ValueError as exc:
        raise Refused(400, f"the body cannot be read as JSON: {exc}; it may have {JSON_RULES}") from exc
    if not isinstance(data, dict):
        raise Refused(400, f"the body must be a JSON object, got {reprlib.repr(data)}")
    return data


def checked(model: type[Model], data: Any, status: int = 400) -> Model:
    """Return the data as an instance of `model`. Raises: Refused with `status`, which says what each field must be."""
    try:
        return model.model_validate(data)
    except ValidationError as exc:
        raise Refused(
            status, "; ".join(_error_text(dict(error)) for error in exc.errors(include_url=False)[:3])
        ) from exc


def _error_text(error: dict[str, Any]) -> str:
    """Return one error of a model: the field, what is wrong, and the value."""
    field = ".".join(map(str, error["loc"])) or "the body"
    if error["type"] == "missing":
        return f"{field} is missing"
    if error["type"] == "extra_forbidden":
        return f"{field} is an unknown field; remove it"
    return f"{field}: {error['msg'].removeprefix('Value error, ')}, got {reprlib.repr(error['input'])}"


def same_key(key: str, right_key: str) -> bool:
    """True if both are equal. The time it takes does not show how many characters are equal."""
    return hmac.compare_digest(key.encode("utf-8", "replace"), right_key.encode("utf-8", "replace"))


class Service:
    """An HTTP service on one address: in a thread as a context manager, or in the foreground by `run`."""

    def __init__(
        self,
        answer: Handler,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        admits: Callable[[str, str], None] | None = None,
        error: Callable[[Refused], dict[str, Any]] = lambda refused: {"error": refused.message},
        max_body: int = MAX_BODY,
    ) -> None:
        """Bind the address; port 0: any free one. `token`: None makes a new one.

        `admits(path, key)` raises Refused if the key is not valid for the path; by default the key is the token.
        `error` returns the body of an error answer. Raises: OSError if the address cannot be bound.
        """
        self.answer, self.error, self.max_body = answer, error, max_body
        self.token = token or secrets.token_urlsafe(32)
        self.admits = admits or self._admits_token
        self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        ip, self.port = self._socket.getsockname()[:2]
        self.address = f"http://[{ip}]:{self.port}" if ":" in ip else f"http://{ip}:{self.port}"
        self._is_local = ipaddress.ip_address(ip).is_loopback
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, "http")
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="http", daemon=True)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app, http=Connection, ws="none", lifespan="off", interface="asgi3", log_config=None,
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
        """Answer until SIGINT or SIGTERM. Requests that are open then have GRACE_S to end."""
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            asyncio.run(self._serve())
        except KeyboardInterrupt:
            pass  # uvicorn raises the signal again after it has ended the requests
        finally:
            signal.signal(signal.SIGTERM, before)
            self.close()

    def close(self) -> None:
        """End the service: no new requests; open ones have GRACE_S to end."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _serve(self) -> None:
        await self._server.serve([self._socket])

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, with an error if it fails. A failure after the answer has begun ends the connection."""
        request, has_begun = Request(scope, receive), False

        async def send_and_note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            self._check(request)
            if (body := await self._body(request, receive)) is None:
                return
            response = await self._answer(request, body)
            await response(scope, receive, send_and_note)
        except (Exception, KeyboardInterrupt, SystemExit) as exc:
            if has_begun:
                raise
            if not isinstance(exc, Refused):
                _log.error("%s %s failed", request.method, request.url.path, exc_info=exc)
            refused = exc if isinstance(exc, Refused) else Refused(500, f"the service failed: {type(exc).__name__}")
            response = JSONResponse(self.error(refused), refused.status)
            if refused.status == 429:
                response.headers["Retry-After"] = "1"
            await response(scope, receive, send)

    def _check(self, request: Request) -> None:
        """Check the head of a request. Raises: Refused."""
        headers = request.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        # At an address that other machines reach, the service does not know its own names, so only the key is checked.
        if self._is_local and not _is_loopback(host):
            raise Refused(421, f"Host {host!r} is not this service; ask for {self.address}")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise Refused(403, f"pages of {origin!r} may not use this service")
        scheme, _, key = headers.get("authorization", "").partition(" ")
        self.admits(request.url.path, key.strip() if scheme.lower() == "bearer" else "")
        if "transfer-encoding" in headers and "content-length" in headers:
            raise Refused(400, "a request has Content-Length or Transfer-Encoding, not both")
        length = int(headers.get("content-length", "0"))  # h11 accepts digits only
        if length > self.max_body:
            raise Refused(413, f"the body may have {self.max_body} bytes, Content-Length is {length}")

    def _admits_token(self, path: str, key: str) -> None:
        if not same_key(key, self.token):
            raise Refused(401, "the Authorization header must be: Bearer <token>")

    async def _body(self, request: Request, receive: Receive) -> bytes | None:
        """Return the body; None if the client has left. Raises: Refused if it is too long or too slow."""
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


def _is_loopback(host: str) -> bool:
    """True if a Host header is localhost or a loopback address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Connection(H11Protocol):
    """A client's connection; it is aborted if the head of a request does not come within IDLE_S."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        live = [c for c in self.connections if isinstance(c, Connection) and not c.transport.is_closing()]
        if len(live) > MAX_CONNECTIONS:  # at least this new one is idle
            min((c for c in live if not c._idle.cancelled()), key=lambda c: c._idle.when()).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._idle = self.loop.call_later(IDLE_S, self.transport.abort)

    def handle_events(self) -> None:
        """Handle the data that arrived; stop the timeout when a request begins."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._idle.cancel()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Leave the connection to the websocket's protocol."""
        self._idle.cancel()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """Start the timeout for the next request. What is left of a refused one is read and dropped until then."""
        self._wait()
        super().on_response_complete()
