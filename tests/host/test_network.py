"""Ports that a run opens, at one address; requests that carry a key, which reaches no other address."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any

import pytest

from tests.listening_rank import listened, said_by_ranks
from tests.warm import warm
from verizero.pipeline.host.network import address_towards, answers, free_port, listen_at, open_url
from verizero.pipeline.rollout.weights import join_group, rendezvous
from verizero.pipeline.scoring.sandbox_setup import _ask
from verizero.pipeline.types import Attempt
from verizero.sandbox.client import Client
from verizero.verifiers.judge import judge

OWN, OTHER, UNREACHABLE = "127.0.0.1", "127.0.0.2", "203.0.113.9"


def reaches(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


LOOPBACK = ["0100007F"]


def test_a_socket_listens_at_its_address_alone() -> None:
    listener = listen_at(OWN, 0)
    assert listener is not None
    with listener:
        port = listener.getsockname()[1]
        assert reaches(OWN, port)
        assert not reaches(OTHER, port)
        with pytest.raises(OSError, match="in use"):
            listen_at(OWN, port)


def test_there_is_none_where_others_may_need_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert listen_at(UNREACHABLE, 0) is None
    assert listen_at("no-such-host.invalid", 0) is None
    place = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (OTHER, 0))
    # as /etc/hosts of Debian leads the machine's own name
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [place])
    assert listen_at("node7", 0) is None
    for host in ("localhost", OTHER):
        listener = listen_at(host, 0)
        assert listener is not None
        listener.close()


def test_a_server_answers_once_it_is_there_and_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever proxy the user has, which would be asked for every other address."""
    monkeypatch.setenv("http_proxy", f"http://{UNREACHABLE}:1")
    url = f"http://{OWN}:{free_port()}/health"
    assert not answers(url)
    well = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if well and self.path == "/health" else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing."""

    with HTTPServer((OWN, int(url.split(":")[2].split("/")[0])), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        assert not answers(url)
        well.append(True)
        assert answers(url)
        assert not answers(url.replace("health", "other"))
        server.shutdown()


def test_weights_for_a_server_travel_at_the_address_on_its_route() -> None:
    here = address_towards(OWN)
    before = set(listened())
    store = rendezvous(here, 0, 2, 30.0, True)
    assert reaches(here, store.port)
    assert not reaches(OTHER, store.port)
    theirs = rendezvous(here, store.port, 2, 30.0, False)
    with ThreadPoolExecutor(2) as threads:
        groups = list(threads.map(lambda of: join_group(of[1], of[0], 2, 30.0), enumerate((store, theirs))))
    assert len(groups) == 2
    assert set(listened()) - before <= set(LOOPBACK)


@pytest.mark.run
def test_ranks_of_one_machine_listen_on_loopback_alone() -> None:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": OWN, "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    assert warm().call(said_by_ranks, place) == ['[["0100007F"], [0, 1]]\n'] * 2


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
