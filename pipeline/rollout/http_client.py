"""A client of an HTTP server with JSON. It waits long for an answer, but only while the server is healthy."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from verizero.pipeline.config.servers import ServerParams
from verizero.pipeline.errors import EngineError
from verizero.pipeline.host.network import address_towards
from verizero.pipeline.rollout.server_client import ServerLost

BRIEF_S = 5.0
"""Seconds within which a lost server must answer to be used again."""
REFUSALS = (400, 413, 422)
"""Statuses for a request that any server would refuse. Other errors mean that this server fails or lacks the route."""
T = TypeVar("T")


class _ThreadState(threading.local):
    """The connection that a thread keeps between its requests."""

    connection: http.client.HTTPConnection | None = None


class HttpClient:
    """The server at `url`. Any number of threads may call it at once; each keeps a connection of its own."""

    def __init__(self, url: str, limits: ServerParams, field: str, hint: str = "is it that kind of server?") -> None:
        """`limits`: timeouts, in the recipe's section `field`. `hint`: added to errors about strange answers.

        After each `health_timeout_s` without an answer, `GET /health` must answer.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise EngineError(f"{field}.urls: {url!r} is not the address of a server; write http://host:port")
        self.url, self.limits, self.field, self.hint = url.rstrip("/"), limits, field, hint
        self._address = (parts.hostname, parts.port or 80)
        self._thread = _ThreadState()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, has_json: bool = True) -> Any:
        """Return the answer's JSON, None for an empty answer and without `has_json`.

        Raises: ServerLost if the server does not answer or fails; EngineError if it refuses the request.
        """
        data = None if body is None else json.dumps(body).encode()
        try:
            status, reply = self._exchange(method, path, data)
        except (OSError, http.client.HTTPException) as exc:
            raise ServerLost(f"{self.url}{path}: {type(exc).__name__}: {exc}") from exc
        # Another server may succeed where this one fails, but not with a request that is wrong itself.
        if status >= 400 and status not in REFUSALS:
            raise ServerLost(f"{self.url}{path}: status {status}: {reply[:300].decode(errors='replace')}")
        if status >= 400:
            raise EngineError(f"{self.url}{path} refused: status {status}: {reply[:500].decode(errors='replace')}")
        try:
            return json.loads(reply) if reply and has_json else None
        except ValueError as exc:
            raise ServerLost(f"{self.url}{path} did not answer with JSON: {reply[:100]!r}; {self.hint}") from exc

    def ask_for(self, name: str, method: str, path: str) -> Any:
        """Return one field of the answer. Raises: as `ask`, and ServerLost for an answer without that field."""
        answer = self.ask(method, path)
        if not isinstance(answer, dict) or name not in answer:
            raise ServerLost(f"{self.url}{path} answered {str(answer)[:100]!r}, without {name!r}; {self.hint}")
        return answer[name]

    def ask_briefly(self, path: str) -> Any:
        """Return the answer's JSON; None without an answer in a few seconds."""
        connection = http.client.HTTPConnection(*self._address, timeout=BRIEF_S)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def address_here(self) -> str:
        """Return the address of this machine on the route to the server."""
        return address_towards(*self._address)

    def _exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        """Return status and body. If the server has closed this thread's old connection, try once more on a new one."""
        # Removed until the answer is read whole: after an exception no request may find half an answer on it.
        old, self._thread.connection = self._thread.connection, None
        for connection in ([] if old is None else [old]) + [self._connect()]:
            try:
                self._in_time(connection.request, method, path, data, {"Content-Type": "application/json"})
                self._await(connection)
                reply = self._in_time(connection.getresponse)
            except (ConnectionError, http.client.RemoteDisconnected, http.client.CannotSendRequest):
                connection.close()
                # A server closes idle connections without notice. A new connection that breaks means that it fails.
                if connection is not old:
                    raise
                continue
            body = self._in_time(reply.read)
            self._thread.connection = connection
            return reply.status, body
        raise AssertionError("the last connection is never the old one")

    def _in_time(self, act: Callable[..., T], *arguments: Any) -> T:
        """Return act(*arguments). Raises: TimeoutError if the server stops in the middle of a request or an answer."""
        try:
            return act(*arguments)
        except TimeoutError:
            waited = f"{self.field}.health_timeout_s={self.limits.health_timeout_s:g}"
            raise TimeoutError(f"an exchange broke off: nothing more within {waited}") from None

    def _await(self, connection: http.client.HTTPConnection) -> None:
        """Return when the answer begins. Raises: TimeoutError if the server is not healthy, or takes too long."""
        limit = f"{self.field}.request_timeout_s={self.limits.request_timeout_s:g}"
        until = time.monotonic() + self.limits.request_timeout_s
        while True:
            try:
                connection.sock.recv(1, socket.MSG_PEEK)  # waits for the first byte, and leaves it there
                return
            except TimeoutError:
                if time.monotonic() > until:
                    raise TimeoutError(f"no answer within {limit}") from None
            self._check_health()

    def _check_health(self) -> None:
        connection = self._connect()
        try:
            connection.request("GET", "/health")
            # A busy server is slow to answer, but /health answers at once; so silence alone is no failure.
            if (status := connection.getresponse().status) != 200:
                raise http.client.HTTPException(f"no answer, and /health returns status {status}")
        except TimeoutError:
            waited = f"{self.field}.health_timeout_s={self.limits.health_timeout_s:g}"
            raise TimeoutError(f"no answer, and none to /health within {waited}") from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        """Return a connection whose every read waits `health_timeout_s` at most."""
        timeout_s = min(self.limits.health_timeout_s, self.limits.request_timeout_s)
        return http.client.HTTPConnection(*self._address, timeout=timeout_s)
