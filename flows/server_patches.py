"""What Prefect's server is given here: browsers stay at home, and writers wait for each other."""

from __future__ import annotations

from typing import Any

AT_HOME = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self' data: blob:"
"""A Content-Security-Policy: the newer UI would ask a host of its makers for settings, whatever the server's say."""


class AtHome:
    """Keeps browsers that show the UI from asking any other host."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on; its answer gets the policy."""

        async def with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"content-security-policy", AT_HOME)]}
            await send(message)

        await self.app(scope, receive, with_policy if scope["type"] == "http" else send)


def take_turns() -> None:
    """Let each transaction take SQLite's lock as it begins, and wait for it.

    One that reads first and would write later fails at once where another has written meanwhile, which a run whose
    tasks are short makes certain: its events are written all the time, and a form in the browser is answered 503.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction

    def at_once(self: Any, session: Any, with_for_update: bool = False) -> Any:
        return begin(self, session, with_for_update=True)

    AioSqliteConfiguration.begin_transaction = at_once  # type: ignore[method-assign]
