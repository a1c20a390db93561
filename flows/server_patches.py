"""Changes of Prefect's server: other hosts' pages and slow clients stay out, and writers of its database wait."""

from __future__ import annotations

import asyncio
from typing import Any

SAME_HOST = (
    b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self' data: blob:; "
    b"frame-ancestors 'none'"
)
"""A Content-Security-Policy. Without it the newer UI asks a host of Prefect for settings, whatever the server's are."""
WITHIN_S = {"http": 60.0, "websocket": 15.0}
"""Seconds within which a body must arrive, or the first message of a websocket, which is its login."""
OTHER_HOST = b"this server answers to its own address alone; open the one that was printed"


class SameHostOnly:
    """ASGI middleware for a server on loopback: nobody reaches it by another name, and it reaches no other host.

    A page of a stranger can make a name of its own point to this machine. The name is then in Host or Origin.
    """

    def __init__(self, app: Any, port: int) -> None:
        self.app = app
        self.names = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request to the app, and add the policy to its answer; refuse other names."""
        kind = scope["type"]
        if kind not in WITHIN_S:
            await self.app(scope, receive, send)
            return
        if not self.is_ours(scope["headers"]):
            await refuse(kind, receive, send, 421, OTHER_HOST)
            return
        is_late = has_begun = False

        async def with_policy(message: Any) -> None:
            nonlocal has_begun
            if is_late:
                return
            has_begun = True
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"content-security-policy", SAME_HOST)]}
            await send(message)

        has_all, until = False, asyncio.get_running_loop().time() + WITHIN_S[kind]

        async def in_time() -> Any:
            """Receive a message. Of a client that is too slow, tell the app that it has left."""
            nonlocal has_all, is_late
            try:
                async with asyncio.timeout_at(None if has_all else until):
                    message = await receive()
            except TimeoutError:
                if kind == "websocket" or not has_begun:
                    await refuse(kind, None, send, 408, b"the request must come sooner")
                    is_late = True
                return {"type": f"{kind}.disconnect", "code": 1008}
            has_all = message["type"] != "websocket.connect" and not message.get("more_body", False)
            return message

        await self.app(scope, in_time, with_policy)

    def is_ours(self, headers: Any) -> bool:
        """True if Host is a name of this server, and Origin, where there is one, the same."""
        hosts = [value for name, value in headers if name == b"host"]
        origins = [value for name, value in headers if name == b"origin"]
        our_origins = {b"http://" + name for name in self.names}
        return len(hosts) == 1 and hosts[0].lower() in self.names and all(o.lower() in our_origins for o in origins)


async def refuse(kind: str, receive: Any, send: Any, status: int, text: bytes) -> None:
    """Answer a request, or close a websocket: one that is not open yet if there is `receive`."""
    if kind == "websocket":
        if receive is not None:
            await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": text.decode()})
        return
    headers = [
        (b"content-type", b"text/plain"),
        (b"content-length", str(len(text)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def lock_early() -> None:
    """Make each transaction wait for SQLite's lock when it begins.

    A transaction that first reads and later writes fails at once if another one has written in between. A run with
    short tasks writes events all the time, so that a form in the browser would be answered with 503.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction

    def with_lock(self: Any, session: Any, with_for_update: bool = False) -> Any:
        # Prefect turns this into BEGIN IMMEDIATE, which waits for the lock where an upgrade would fail.
        return begin(self, session, with_for_update=True)

    AioSqliteConfiguration.begin_transaction = with_lock  # type: ignore[method-assign]
