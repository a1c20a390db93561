"""The endpoint answers everybody: whatever one client sends, it gets an answer of its own, and others are served on."""

from __future__ import annotations

import gc
import http.client
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import until
from tests.run.requests import ODD, RAW, RIGHT, TALK, endpoint, fuzz, post
from verizero.pipeline.commands.endpoint import KEY, key_of
from verizero.pipeline.environments.gateway.exchange import Exchange
from verizero.pipeline.errors import ConfigError

pytestmark = pytest.mark.integration  # a server and its clients


@pytest.fixture(scope="module")
def served() -> Iterator[Exchange]:
    """The exchange of a served model, which still answers when all tests are over."""
    with endpoint() as (exchange, ends):
        yield exchange
        assert ends == []
        for path, body in RIGHT.items():
            assert post(exchange, path, json.dumps(body).encode())[0] == 200


@pytest.mark.parametrize("path", RIGHT)
def test_an_odd_value_in_any_field_is_refused_by_its_name_or_answered(served: Exchange, path: str) -> None:
    for field in RIGHT[path]:
        for odd in ODD:
            status, answer = post(served, path, json.dumps(RIGHT[path] | {field: odd}).encode())
            assert status in (200, 400, 404), (field, odd, answer)
            if status == 400:
                error = json.loads(answer)["error"]
                assert error["type"] == "invalid_request_error"
                assert error["message"]


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        *((p, "temperature", v) for p in RIGHT for v in (-1, 1e-320, 1e300, "hot", [])),
        *((p, "top_p", v) for p in RIGHT for v in (0, 1.5, 1e-320, "x")),
        *(("chat/completions", f"max_{f}tokens", v) for f in ("", "completion_") for v in (0, -1, 10**30, 0.5, "many")),
        *(("chat/completions", "seed", v) for v in (10**30, "x", 0.5, [])),
        *(("messages", "top_k", v) for v in (-1, 10**30, "x")),
        ("responses", "max_output_tokens", 0),
        *((p, "stream", v) for p in RIGHT for v in ("yes", 1, [])),
        ("chat/completions", "stop", [7]),
        ("messages", "stop_sequences", [""]),
        ("responses", "previous_response_id", ["x"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(served: Exchange, path: str, field: str, value: Any) -> None:
    status, answer = post(served, path, json.dumps(RIGHT[path] | {field: value}).encode())
    assert status == 400
    assert field in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize("body", RAW, ids=lambda b: repr(b[:30]))
@pytest.mark.parametrize("path", RIGHT)
def test_a_body_that_is_no_request_is_answered(served: Exchange, path: str, body: bytes) -> None:
    status, answer = post(served, path, body)
    assert status == 400
    assert "error" in json.loads(answer)


@pytest.mark.parametrize("length", ["-1", "abc", "", "1e3", "99999999999999999999"])
def test_a_length_that_cannot_be_is_refused_before_anything_is_read(served: Exchange, length: str) -> None:
    host, _, port = served.url.removeprefix("http://").partition("/")[0].partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        head = f"POST /e/{served.number}/v1/messages HTTP/1.1\r\nHost: {host}:{port}\r\nx-api-key: {served.key}\r\n"
        sock.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
        answer = sock.recv(4096)
    assert answer.split()[1] in (b"400", b"413"), answer


def test_a_question_that_cannot_fit_is_refused_before_it_is_tokenised(served: Exchange) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * (10 << 20)}]}).encode()
    status, answer = post(served, "chat/completions", body)
    assert status == 400
    assert "400 tokens hold at most 4000" in json.loads(answer)["error"]["message"]


def test_nothing_of_a_request_stays_when_it_is_answered(served: Exchange) -> None:
    big = RIGHT["responses"] | {"input": [{"role": "user", "content": "x"}], "metadata": {"a": "y" * (2 << 20)}}
    post(served, "responses", json.dumps(big).encode())
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(30):
            assert post(served, "responses", json.dumps(big).encode())[0] == 200
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_client_that_leaves_is_not_answered() -> None:
    free = threading.Event()
    with endpoint(free) as (exchange, ends):
        host = exchange.url.removeprefix("http://").partition("/")[0]
        connections = []
        for stream in (False, True):
            connection = http.client.HTTPConnection(host, timeout=20)
            body = json.dumps({"model": "m", "messages": TALK, "stream": stream})
            connection.request("POST", f"/e/{exchange.number}/v1/chat/completions", body, {"x-api-key": exchange.key})
            connections.append(connection)
        until(lambda: len(exchange._open) == 2, "both requests")
        pendings = list(exchange._open)
        time.sleep(3.5)  # the stream has begun
        for connection in connections:
            connection.close()
        until(lambda: all(p.is_abandoned for p in pendings), "that both are known to have left", 20)
        assert exchange._open == []
        free.set()
        assert post(exchange, "messages", json.dumps(RIGHT["messages"]).encode())[0] == 200
        assert [p.answer for p in pendings] == [None, None]
        assert ends == []


def test_random_requests_end_nothing(served: Exchange) -> None:
    counts = fuzz(served, seed=0, count=400)
    assert set(counts) <= {200, 400, 404}
    assert counts[200] > 10
    assert counts[400] > 100


@pytest.mark.parametrize("content", ["", "two words", "é", "a\nb"])
def test_a_key_is_of_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setenv(KEY, "from the environment")
    assert key_of(None) == "from the environment"
    monkeypatch.delenv(KEY)
    assert key_of(None) is None
    file = tmp_path / "key"
    file.write_text("secret\n")
    assert key_of(file) == "secret"
    file.write_text(content)
    with pytest.raises(ConfigError, match="must hold one key"):
        key_of(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        key_of(tmp_path / "nowhere")
