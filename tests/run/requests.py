"""A served model behind its gateway, and requests of the three APIs: right ones, odd ones and random ones."""

from __future__ import annotations

import copy
import http.client
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.environments.gateway.exchange import Exchange
from verizero.pipeline.environments.gateway.server import Gateway
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.scripted_engine import ScriptedEngine
from verizero.pipeline.run.serving import Served, serve_waiting

TOKENIZER = character_tokenizer()
TALK = [{"role": "user", "content": "ab"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}
RIGHT: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "model": "m", "messages": TALK, "temperature": 0.5, "top_p": 0.9, "seed": 3, "max_tokens": 4, "stop": ["z"],
        "stream": False, "stream_options": None, "n": 1, "tool_choice": "auto", "tools": [],
    },
    "responses": {
        "model": "m", "input": TALK, "instructions": None, "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 4,
        "stream": False, "tools": [], "tool_choice": "auto", "previous_response_id": None, "text": {},
    },
    "messages": {
        "model": "m", "messages": TALK, "system": None, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "max_tokens": 4,
        "stop_sequences": ["z"], "stream": False, "tools": [],
    },
}  # fmt: skip
"""A request of each API, with every field that it reads."""
DEEP: Any = []
for _ in range(150):
    DEEP = [DEEP]
ODD: list[Any] = [
    *(-1, 0, 1e-320, 0.5, 1e300, 2**31, 10**30, True, False, None, "", "x", "1", "\0", "é" * 50),
    *([], [[]], {}, {"a": None}),
    *([None], [7], [{}], [{"role": "user"}], [{"type": "text", "text": 7}], {"type": []}, {"type": "text"}, DEEP),
    *([{"role": "tool", "content": "x", "tool_call_id": odd, "name": odd} for odd in (7, {}, [])]),
    *([{"role": [], "content": {}}], [{"role": "assistant", "content": "x", "tool_calls": [CALL, {"id": {}}]}]),
    *([{"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": a}}]}] for a in ("[", 7)),
    [TOOL, {"type": "function", "function": {"name": {}, "parameters": 7}}],
    [{"type": "function_call", "call_id": {}, "name": "f", "arguments": "{}"}],
    [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": 7, "content": []}]}],
]  # fmt: skip
"""Values that are put in the place of each field."""
RAW = [
    b"", b"{", b"[]", b"7", b"nul", b'{"a": NaN}', b'{"model": "m", "temperature": 1e400}', b"\xff\xfe", b"[" * 100_000,
    b'{"a":' * 5000, b'{"model": "m", "seed": ' + b"9" * 5000 + b"}",
    b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "m", "messages": [{"role": "assistant", "content": "\\udfff"}, {"role": "user", "content": "a"}]}',
]  # fmt: skip
"""Bodies that are no request."""


@contextmanager
def endpoint(free: threading.Event | None = None) -> Iterator[tuple[Exchange, list[BaseException]]]:
    """Serve a scripted model as the command does, in a thread, while `free` is set; the list gets what ended it."""
    engine = ScriptedEngine(lambda ids, _seed: (ids[-1], TOKENIZER.eos_token_id), TOKENIZER.eos_token_id)
    served = Served(engine, turns_of(Renderer(TOKENIZER, Template())), 400, Sampling(8, 0.7), 4000)
    gateway, ends, is_over = Gateway(), list[BaseException](), threading.Event()
    exchange = gateway.open(is_episode=False)

    def serve() -> None:
        try:
            while not is_over.is_set():
                if free is not None:
                    free.wait()
                serve_waiting(served, exchange, 0.05)
        except BaseException as exc:
            ends.append(exc)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield exchange, ends
    finally:
        is_over.set()
        thread.join(20)
        gateway.close()


def post(exchange: Exchange, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Return status and body of the answer to a request."""
    host = exchange.url.removeprefix("http://").partition("/")[0]
    connection = http.client.HTTPConnection(host, timeout=20)
    try:
        own = {"Authorization": f"Bearer {exchange.key}", "Content-Type": "application/json"}
        connection.request("POST", f"/e/{exchange.number}/v1/{path}", body, own | (headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def changed(rng: random.Random, value: Any) -> Any:
    """Return a value with a random part of it replaced, dropped or doubled."""
    value = copy.deepcopy(value)
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        if rng.random() < 0.1:
            del value[key]
        else:
            value[key] = changed(rng, value[key])
        return value
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        value[at : at + 1] = [changed(rng, value[at])] * rng.choice((1, 1, 2))
        return value
    return copy.deepcopy(rng.choice(ODD))


def fuzz(exchange: Exchange, seed: int, count: int) -> dict[int, int]:
    """Send random requests; return how many answers of each status there were."""
    rng, counts = random.Random(seed), dict[int, int]()
    for _ in range(count):
        path = rng.choice(list(RIGHT))
        body = changed(rng, changed(rng, RIGHT[path]) if rng.random() < 0.5 else RIGHT[path])
        data = rng.choice(RAW) if rng.random() < 0.1 else json.dumps(body).encode()
        status, answer = post(exchange, path, data)
        assert answer, (path, body)
        counts[status] = counts.get(status, 0) + 1
    return counts
