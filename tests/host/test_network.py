"""Ports that a run opens, at one address; requests that carry a key, which reaches no other address."""

import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.json_server import serving
from tests.listening_rank import listened, said_by_ranks
from tests.warm import warm
from verizero.pipeline.host.network import address_towards, answers, free_port, listen_at, open_url
from verizero.pipeline.rollout.weights import join_group, rendezvous
from verizero.pipeline.scoring.sandbox_setup import _ask
from verizero.pipeline.types import Attempt
from verizero.sandbox.client import Client
from verizero.verifiers.judge import judge

OWN, OTHER, UNREACHABLE = "127.0.0.1", "127.0.0.2", "203.0.113.9"


def reaches(host, port):
    try:
        socket.create_connection((host, port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


LOOPBACK = ["0100007F"]


def test_a_socket_listens_at_its_address_alone():
    listener = listen_at(OWN, 0)
    with listener:
        port = listener.getsockname()[1]
        assert reaches(OWN, port)
        assert not reaches(OTHER, port)
        with pytest.raises(OSError, match="in use"):
            listen_at(OWN, port)


def test_there_is_none_where_others_may_need_another_address(monkeypatch):
    assert listen_at(UNREACHABLE, 0) is None
    assert listen_at("no-such-host.invalid", 0) is None
    place = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (OTHER, 0))
    # as /etc/hosts of Debian leads the machine's own name
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [place])
    assert listen_at("node7", 0) is None
    for host in ("localhost", OTHER):
        listener = listen_at(host, 0)
        listener.close()


def test_a_server_answers_once_it_is_there_and_well(monkeypatch):
    """Whatever proxy the user has, which would be asked for every other address."""
    monkeypatch.setenv("http_proxy", f"http://{UNREACHABLE}:1")
    well = []
    with serving(lambda path, body, key: (200 if well and path == "/health" else 503, None)) as address:
        assert not answers(f"{address}/health")
        well.append(True)
        assert answers(f"{address}/health")
        assert not answers(f"{address}/other")
    assert not answers(f"{address}/health")


def test_weights_for_a_server_travel_at_the_address_on_its_route():
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
def test_ranks_of_one_machine_listen_on_loopback_alone():
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": OWN, "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    assert warm().call(said_by_ranks, place) == ['[["0100007F"], [0, 1]]\n'] * 2


@pytest.fixture
def moved():
    """A server that redirects to another one; what the other one was sent as a key; the status to redirect with."""
    keys, status = [], [302]

    def there(path, body, key):
        keys.append(key)
        return 200, {}

    with serving(there) as other, serving(lambda path, *_: (status[0], {}, {"Location": f"{other}{path}"})) as here:
        yield here, keys, status


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("body", [None, b"{}"])
def test_no_redirect_is_followed_and_the_error_names_where_it_led(moved, code, body):
    url, keys, status = moved
    status[0] = code
    request = urllib.request.Request(url, body, {"Authorization": "Bearer secret"})
    with pytest.raises(urllib.error.HTTPError, match=r"redirects to 'http://127.0.0.1:.* is not followed") as refusal:
        open_url(request, 5)
    assert refusal.value.code == code
    assert keys == []


def test_every_client_with_a_key_uses_it(moved, monkeypatch):
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
