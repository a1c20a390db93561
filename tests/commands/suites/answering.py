"""A model at an address that speaks chat completions: it gives the answers of a table, and notes what it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answering = Callable[[str], str | dict[str, Any]]
"""The message -> the answer's text, or the whole choice."""


class Model:
    """The server. It gives `most` answers, and then lets requests wait for ever."""

    def __init__(self, answer: Answering, most: int | None = None) -> None:
        self.answer, self.most = answer, most
        self.answered: list[tuple[str, int]] = []
        """(message, seed or 0) of each answer."""
        self.lock, self.stalled, self.closing = threading.Lock(), threading.Event(), threading.Event()
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply({"data": [{"id": "made"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                message = body["messages"][-1]["content"]
                with model.lock:
                    waits = model.most is not None and len(model.answered) >= model.most
                    if not waits:
                        model.answered.append((message, body.get("seed", 0)))
                if waits:
                    model.stalled.set()
                    model.closing.wait(60)
                    return
                made = model.answer(message)
                choice = {"message": {"content": made}, "finish_reason": "stop"} if isinstance(made, str) else made
                self.reply({"model": "made", "choices": [choice]})

            def reply(self, value: object) -> None:
                content = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"


@contextmanager
def answering(answer: Answering, most: int | None = None) -> Iterator[Model]:
    """Yield the model while it is served."""
    model = Model(answer, most)
    thread = threading.Thread(target=model.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield model
    finally:
        model.closing.set()
        model.server.shutdown()
        model.server.server_close()
