"""Two changes of Prefect's server: browsers ask no other host, and writers of its database wait for each other."""

from __future__ import annotations

from typing import Any

SAME_HOST = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self' data: blob:"
"""A Content-Security-Policy. Without it the newer UI asks a host of Prefect for settings, whatever the server's are."""


class SameHostOnly:
    """ASGI middleware that stops browsers from sending the UI's requests to any other host."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request to the app, and add the policy to its answer."""

        async def with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"content-security-policy", SAME_HOST)]}
            await send(message)

        await self.app(scope, receive, with_policy if scope["type"] == "http" else send)


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
