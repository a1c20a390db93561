"""The server under the HTTP services, over real sockets: hostile requests, slow clients, failures, an end in order."""

import asyncio
import http.client
import json
import socket
import threading

import pytest
from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse, Response, StreamingResponse

from verizero.pipeline.host import service as services
from verizero.pipeline.host.service import Refused, Service, checked, parsed

TOKEN = "secret"
PATIENCE_S = 60.0


class Numbers(BaseModel):
    """What the service of these tests is sent."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    number: float
    inner: dict[str, int] = {}


FAILURES = {
    "value": ValueError("x"),
    "memory": MemoryError(),
    "recursion": RecursionError(),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "unicode": UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"),
}


def answer(request, body):
    kind = request.url.path.removeprefix("/fail/")
    if kind in FAILURES:
        raise FAILURES[kind]
    if kind == "/busy":
        raise Refused(429, "too many requests")
    return JSONResponse({"double": 2 * checked(Numbers, parsed(body), 422).number})


@pytest.fixture(scope="module")
def service():
    with Service(answer, token=TOKEN, max_body=100_000) as made:
        yield made


def connected(service):
    return socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_S)


def raw(service, data):
    """Everything that the service sends back to these bytes until it closes the connection, or one whole answer."""
    with connected(service) as client:
        try:
            client.sendall(data)
            reply = http.client.HTTPResponse(client)
            reply.begin()
            return b"%d %s" % (reply.status, reply.read())
        except (http.client.HTTPException, OSError) as exc:
            return type(exc).__name__.encode()


def head(*lines, path="/", host="localhost", token=TOKEN):
    first = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {token}"]
    return "\r\n".join([*first, *lines, "", ""]).encode("latin-1")


def post(service, body, path="/", **headers):
    client = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE_S)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        client.request("POST", path, data, {"Authorization": f"Bearer {TOKEN}"} | headers)
        reply = client.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        client.close()


def still_answers(service):
    assert post(service, {"number": 21}) == (200, {"double": 42.0})


GOOD = b'{"number": 1}'
CLOSED = (b"ConnectionResetError", b"BrokenPipeError")
"""How a client may learn of the end of its connection that sends on after data that are no HTTP."""


class TestRequestsThatAreNoHttp:
    @pytest.mark.parametrize(
        "lines",
        [
            *((f"Content-Length: {length}",) for length in ("abc", "-1", "+13", "1 3", "", "\xb2", "13, 12", "9" * 26)),
            ("Content-Length: 13", "Content-Length: 14"),
            ("Content-Length: 13", "Transfer-Encoding: chunked"),
            *((f"Transfer-Encoding: {coding}",) for coding in ("gzip", "chunked, chunked", "chunked")),
            ("Host: localhost",),
            ("A: " + "x" * 200_000,),
            *((header,) for header in ("a\x00b: x", "a b: x", ": x", "a: \x00")),
        ],
    )
    def test_the_body_is_never_read_as_the_next_request(self, service, lines):
        reply = raw(service, head(*lines) + b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert reply.startswith((b"400 ", b"413 ", b"501 ", *(CLOSED if len(lines[0]) > 65_536 else ()))), reply
        still_answers(service)

    @pytest.mark.parametrize(
        "data",
        [
            b"\x16\x03\x01\x02\x00\x01",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"CONNECT evil:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            b"X" * 100_000,
        ],
    )
    def test_garbage_is_answered_with_a_reason(self, service, data):
        reply = raw(service, data)
        assert reply.startswith((b"4", *(CLOSED if len(data) > 65_536 else ()))), reply
        assert len(reply) > 10
        still_answers(service)

    def test_a_broken_chunk_ends_its_connection_alone(self, service):
        for chunk in (b"zz\r\n", b"-1\r\n", b"5\r\nabcdefgh\r\n", b"FFFFFFFFFFFFFFFFFFFFFFFFF\r\n"):
            assert raw(service, head("Transfer-Encoding: chunked") + chunk).startswith(b"400 ")
        still_answers(service)


class TestBodies:
    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"[" * 100_000, "recursion"),
            (b'{"number":' * 9_000, "recursion"),
            (b'{"number": ' + b"1" * 5000 + b"}", "4,300 digits"),
            (b'{"number": NaN}', "NaN"),
            (b'{"number": -Infinity}', "JSON"),
            (b'{"number": 1e999}', "number: Input should be a finite number"),
            (b'{"number": "\\ud800"}', "half of a surrogate pair"),
            (b'{"number": "\xed\xa0\x80"}', "UTF-8"),
            (b'{"number": "1"}', "number: Input should be a valid number, got '1'"),
            (b'{"number": true}', "number"),
            (b'{"number": 1, "more": 2}', "more is an unknown field"),
            (b'{"number": 1, "inner": {"a": 1.5}}', "inner.a"),
            (b"{}", "number is missing"),
            (b"[]", "object, got []"),
            (b"", "JSON"),
            (b"\xff", "JSON"),
            (b"{", "JSON"),
            (b'{"a": 1}}', "trailing"),
        ],
    )
    def test_what_is_wrong_is_named(self, service, body, reason):
        status, reply = post(service, body)
        assert status in (400, 422)
        assert reason in reply["error"]
        assert len(reply["error"]) < 500
        still_answers(service)

    def test_a_long_body_is_refused_before_it_is_sent(self, service):
        assert raw(service, head("Content-Length: 100001")).startswith(b"413 ")
        assert raw(service, head("Content-Length: 100001", "Expect: 100-continue")).startswith(b"413 ")
        assert post(service, b'{"number": 1' + b" " * (100_000 - 13) + b"}")[0] == 200

    def test_chunks_are_counted(self, service):
        chunk = b"2710\r\n" + b" " * 10_000 + b"\r\n"
        start = head("Transfer-Encoding: chunked")
        assert raw(service, start + chunk * 9 + b"d\r\n" + GOOD + b"\r\n0\r\n\r\n").startswith(b"200 ")
        assert raw(service, start + chunk * 12).startswith(b"413 ")

    def test_a_refused_client_hears_why_though_it_still_sends(self, service):
        assert raw(service, head("Content-Length: 5000000") + b" " * 5_000_000).startswith(b"413 ")
        assert raw(service, head("Content-Length: 5000000", token="no") + b" " * 5_000_000).startswith(b"401 ")


class TestWhoMayAsk:
    @pytest.mark.parametrize("token", ["", "Secret", "secret ", "secre", "secret\xe9", "x" * 10_000])
    def test_without_the_token_nothing_is_read(self, service, token):
        expected = b"200 " if token.strip() == TOKEN else b"401 "
        assert raw(service, head("Content-Length: 13", token=token) + GOOD).startswith(expected)
        assert raw(service, head("Content-Length: 99", token="no")).startswith(b"401 ")

    def test_the_key_comes_as_a_bearer(self, service):
        assert post(service, GOOD, Authorization="bearer secret")[0] == 200
        assert post(service, GOOD, Authorization="Basic secret")[0] == 401

    def test_a_token_is_made(self):
        tokens = set()
        for empty in (None, ""):
            made = Service(answer, token=empty)
            tokens.add(made.token)
            made.close()
        assert len(tokens) == 2
        assert min(map(len, tokens)) >= 32

    @pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "127.9.9.9", "[::1]:8"])
    def test_names_of_this_machine_are_answered(self, service, host):
        assert raw(service, head("Content-Length: 13", host=host) + GOOD).startswith(b"200 ")

    @pytest.mark.parametrize(
        "host",
        [
            *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example#localhost"),
            *("localhost@evil.example", "[::1", "", "0.0.0.0", "10.0.0.1"),
        ],
    )
    def test_other_names_are_refused(self, service, host):
        assert raw(service, head("Content-Length: 13", host=host) + GOOD).startswith(b"421 ")

    @pytest.mark.parametrize("port", ["2", "1.evil.example"])
    def test_pages_of_others_are_refused(self, service, port):
        for origin in (f"http://localhost:{port}", "http://evil.example", "null", "", "file://"):
            lines = ["Content-Length: 13", f"Origin: {origin}"]
            assert raw(service, head(*lines, host="localhost:1") + GOOD).startswith(b"403 ")
        own = ["Content-Length: 13", "Origin: http://localhost:1"]
        assert raw(service, head(*own, host="localhost:1") + GOOD).startswith(b"200 ")

    def test_a_service_may_judge_keys_itself_and_write_its_own_refusals(self):
        def admits(path, key):
            if key != path.strip("/"):
                raise Refused(404, f"nothing at {path}")

        def error(refused):
            return {"type": "error", "text": refused.message}

        with Service(answer, admits=admits, error=error) as service:
            assert post(service, GOOD, "/a", Authorization="Bearer a")[0] == 200
            assert post(service, GOOD, "/b", Authorization="Bearer a") == (
                404,
                {"type": "error", "text": "nothing at /b"},
            )
            assert post(service, b"[]", "/b", Authorization="Bearer b")[1]["type"] == "error"


class TestFailures:
    @pytest.mark.parametrize("kind", FAILURES)
    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_failure_is_an_answer_to_its_client_alone(self, kind, is_async):
        async def answer_in_loop(request, body):
            return answer(request, body)

        with Service(answer_in_loop if is_async else answer, token=TOKEN) as service:
            status, reply = post(service, {}, f"/fail/{kind}")
            assert (status, reply["error"]) == (500, f"the service failed: {type(FAILURES[kind]).__name__}")
            still_answers(service)

    def test_a_connection_is_kept_after_a_refusal_of_the_answer(self, service):
        client = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE_S)
        client.connect()
        kept = client.sock
        requests = (("/", b"{}", 422), ("/", GOOD, 200), ("/", b"[", 400), ("/busy", GOOD, 429), ("/", GOOD, 200))
        for path, body, status in requests:
            client.request("POST", path, body, {"Authorization": f"Bearer {TOKEN}"})
            reply = client.getresponse()
            reply.read()
            assert (reply.status, client.sock) == (status, kept)
            assert reply.headers["Retry-After"] == ("1" if status == 429 else None)
        client.close()


class TestSlowClients:
    @pytest.fixture
    def hasty(self, monkeypatch):
        for name in ("IDLE_S", "BODY_S"):
            monkeypatch.setattr(services, name, 0.2)
        monkeypatch.setattr(services, "MAX_CONNECTIONS", 8)

        def long(request, body):
            return Response(b"x" * 50_000_000) if body == b"long" else answer(request, body)

        with Service(long, token=TOKEN) as made:
            yield made

    def test_a_head_that_does_not_come_ends_the_connection(self, hasty):
        for start in (b"", b"POST / HT", head("Content-Length: 13") + GOOD + b"POST"):
            with connected(hasty) as client:
                client.sendall(start)
                while client.recv(1 << 16):
                    pass
        still_answers(hasty)

    def test_a_body_that_does_not_come_is_refused(self, hasty):
        assert raw(hasty, head("Content-Length: 13") + b"{").startswith(b"408 ")
        assert raw(hasty, head("Transfer-Encoding: chunked") + b"1\r\n{\r\n").startswith(b"408 ")

    def test_those_that_wait_make_room_for_those_that_ask(self, hasty, monkeypatch):
        monkeypatch.setattr(services, "IDLE_S", PATIENCE_S)
        idle = [connected(hasty) for _ in range(40)]
        for client in idle[20:]:
            client.sendall(b"POST / HTTP/1.1\r\n")
        for _ in range(20):
            still_answers(hasty)
        assert len(hasty._server.server_state.connections) <= 8
        for client in idle:
            client.close()


class TestStreams:
    def test_a_stream_ends_when_its_client_leaves(self):
        cancelled = threading.Event()

        async def stream(request, body):
            async def parts():
                try:
                    while True:
                        yield b"part\n"
                        await asyncio.sleep(0.01)
                finally:
                    cancelled.set()

            return StreamingResponse(parts())

        with Service(stream, token=TOKEN) as service:
            with connected(service) as client:
                client.sendall(head("Content-Length: 0"))
                assert b"200" in client.recv(1000)
                assert not cancelled.is_set()
            assert cancelled.wait(PATIENCE_S)

    def test_a_request_in_progress_ends_before_the_service_does(self):
        begun, may_end = threading.Event(), threading.Event()

        def wait(request, body):
            begun.set()
            may_end.wait(PATIENCE_S)
            return JSONResponse("ended")

        with connected(service := Service(wait, token=TOKEN)) as client:
            with service:
                client.sendall(head("Content-Length: 0"))
                assert begun.wait(PATIENCE_S)
                threading.Timer(0.05, may_end.set).start()
            assert client.recv(10_000).endswith(b'"ended"')
        with pytest.raises(ConnectionRefusedError):
            connected(service)

    def test_an_address_of_version_6(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("IPv6 is off: sysctl net.ipv6.conf.lo.disable_ipv6=0")
        with Service(answer, host="::1") as service:
            assert service.address == f"http://[::1]:{service.port}"
