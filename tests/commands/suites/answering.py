"""A model at an address that speaks chat completions: it gives the answers of a table, and notes what it is asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.json_server import serving

Answering = Callable[[str], str]
"""The message -> the answer's text."""


class Model:
    """It gives `most` answers, and then lets requests wait for ever."""

    url = ""

    def __init__(self, answer: Answering, most: int | None = None) -> None:
        self.answer, self.most = answer, most
        self.answered: list[tuple[str, int]] = []
        """(message, seed or 0) of each answer."""
        self.lock, self.stalled, self.closing = threading.Lock(), threading.Event(), threading.Event()

    def reply(self, path: str, body: bytes, key: str | None) -> tuple[int, Any]:
        if not body:
            return 200, {"data": [{"id": "made"}]}
        asked = json.loads(body)
        message = asked["messages"][-1]["content"]
        with self.lock:
            waits = self.most is not None and len(self.answered) >= self.most
            if not waits:
                self.answered.append((message, asked.get("seed", 0)))
        if waits:
            self.stalled.set()
            self.closing.wait(60)
            return 503, None
        choice = {"message": {"content": self.answer(message)}, "finish_reason": "stop"}
        return 200, {"model": "made", "choices": [choice]}


@contextmanager
def answering(answer: Answering, most: int | None = None) -> Iterator[Model]:
    """Yield the model while it is served."""
    model = Model(answer, most)
    with serving(model.reply) as address:
        model.url = f"{address}/v1"
        yield model
        model.closing.set()
