"""What Prefect's server is given."""

from __future__ import annotations

import asyncio
from typing import Any

from flows.server_patches import SameHostOnly


def test_answers_carry_the_policy() -> None:
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": scope["answer"], "status": 200, "headers": [(b"a", b"b")]})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(SameHostOnly(app)({"type": "http", "answer": "http.response.start"}, None, send))
    asyncio.run(SameHostOnly(app)({"type": "websocket", "answer": "websocket.accept"}, None, send))
    (_, (name, policy)), plain = (message["headers"] for message in sent)
    assert (name, plain) == (b"content-security-policy", [(b"a", b"b")])
    assert b"connect-src 'self'" in policy
