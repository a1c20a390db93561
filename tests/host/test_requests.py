"""Requests that carry a key: whatever a server answers, the key reaches no other address."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from verizero.pipeline.host.network import open_url
from verizero.pipeline.scoring.sandbox_setup import _ask
from verizero.pipeline.types import Attempt
from verizero.sandbox.client import Client
from verizero.verifiers.judge import judge


@pytest.fixture
def moved() -> Iterator[tuple[str, list[str | None], list[int]]]:
    """A server that redirects to another one; what the other one was sent as a key; the status to redirect with."""
    keys: list[str | None] = []
    status = [302]

    class There(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    there = ThreadingHTTPServer(("127.0.0.1", 0), There)

    class Here(There):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status[0])
            self.send_header("Location", f"http://127.0.0.1:{there.server_port}{self.path}")
            self.end_headers()

        do_POST = do_GET

    here = ThreadingHTTPServer(("127.0.0.1", 0), Here)
    for server in (here, there):
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{here.server_port}", keys, status
    for server in (here, there):
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("body", [None, b"{}"])
def test_no_redirect_is_followed_and_the_error_names_where_it_led(moved: Any, code: int, body: bytes | None) -> None:
    url, keys, status = moved
    status[0] = code
    request = urllib.request.Request(url, body, {"Authorization": "Bearer secret"})
    with pytest.raises(urllib.error.HTTPError, match=r"redirects to 'http://127.0.0.1:.* is not followed") as refusal:
        open_url(request, 5)
    assert refusal.value.code == code
    assert keys == []


def test_every_client_with_a_key_uses_it(moved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url, keys, _ = moved
    monkeypatch.setenv("JUDGE_KEY", "secret")
    params = {"url": f"{url}/v1", "model": "m", "backoff_s": 0.0, "api_key_variable": "JUDGE_KEY"}
    (verdict,) = judge.bind(params).score([Attempt("42", "the gold", "the task")])
    assert verdict.status == "verifier_error"
    assert "redirects to" in verdict.reason
    with pytest.raises(urllib.error.HTTPError, match="redirects to"):
        _ask(f"{url}/health", "secret")
    with pytest.raises(urllib.error.HTTPError, match="redirects to"):
        Client([url], token="secret")._ask(urllib.request.Request(f"{url}/run", b"{}"))
    assert keys == []
