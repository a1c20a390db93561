"""What Prefect's server is given."""

import asyncio

import pytest

from verizero.flows.server import LOGIN, WITHIN_S, SameHostOnly, login_of
from verizero.pipeline.errors import RunError


def sent_by(app, scope, receive=None, **headers):
    """Return what is sent to a client of the app, which is asked with these headers."""
    sent = []

    async def send(message):
        sent.append(message)

    own = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(SameHostOnly(app, 9)({**scope, "headers": own}, receive, send))
    return sent


@pytest.mark.parametrize(("kind", "answer"), [("http", "http.response.start"), ("websocket", "websocket.accept")])
def test_answers_to_requests_carry_the_policy(kind, answer):
    async def app(scope, receive, send):
        await send({"type": answer, "status": 200, "headers": [(b"a", b"b")]})

    (message,) = sent_by(app, {"type": kind}, host="127.0.0.1:9")
    policy = dict(message["headers"]).get(b"content-security-policy", b"")
    assert (b"a", b"b") in message["headers"]
    assert (b"connect-src 'self'" in policy) == (b"frame-ancestors 'none'" in policy) == (kind == "http")


@pytest.mark.parametrize(
    ("headers", "refusal"),
    [
        ({"host": "127.0.0.1:9"}, 0),
        ({"host": "localhost:9", "origin": "http://localhost:9"}, 0),
        ({"host": "127.0.0.1:9", "origin": "http://evil.example"}, 421),
        ({"host": "127.0.0.1:9", "origin": "null"}, 421),
        ({"host": "127.0.0.1:9", "origin": "http://127.0.0.1:8"}, 421),
        ({"host": "evil.example:9"}, 421),
        ({"host": "evil.example"}, 421),
        ({}, 421),
        ({"host": "127.0.0.1:9", "authorization": "Basic bWU6bWluZQ=="}, 0),
        ({"host": "127.0.0.1:9", "authorization": "Basic bWU6w6k="}, 401),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_other_names_and_pages_of_other_origins_are_refused(kind, headers, refusal):
    asked = []

    async def app(scope, receive, send):
        asked.append(scope)

    async def receive():
        return {"type": "websocket.connect"}

    sent = sent_by(app, {"type": kind}, receive, **headers)
    assert bool(asked) == (not refusal)
    if refusal:
        wanted = {"http": {"status": refusal}, "websocket": {"code": 1008}}[kind]
        assert wanted.items() <= sent[0].items()


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize(
    ("kind", "first", "answer"),
    [
        ("http", {"type": "http.request", "body": b"{", "more_body": True}, {"status": 408}),
        ("websocket", {"type": "websocket.connect"}, {"code": 1008}),
    ],
)
def test_a_client_that_sends_no_more_is_sent_away(kind, first, answer, is_late, monkeypatch):
    """The body of a request, or the login of a websocket. After a whole body, or a login, nothing need come."""
    monkeypatch.setitem(WITHIN_S, kind, 0.0)
    whole = {**first, "more_body": False} if kind == "http" else {"type": "websocket.receive"}
    left, seen = [first] if is_late else [first, whole], []

    async def app(scope, receive, send):
        seen.extend([(await receive())["type"] for _ in range(len(left))])
        last = await asyncio.wait([asyncio.ensure_future(receive())], timeout=60 if is_late else 0.05)
        seen.extend(task.result()["type"] for task in last[0])

    async def receive():
        return left.pop(0) if left else await asyncio.Future()

    sent = sent_by(app, {"type": kind}, receive, host="127.0.0.1:9")
    assert (f"{kind}.disconnect" in seen) == is_late
    assert (answer.items() <= sent[0].items()) if is_late else not sent


def test_a_login_is_made_once_for_its_owner_alone(tmp_path, monkeypatch):
    monkeypatch.delenv(LOGIN, raising=False)
    first, place = login_of(tmp_path)
    assert login_of(tmp_path) == (first, place)
    assert place == str(tmp_path / "login")
    assert (tmp_path / "login").stat().st_mode & 0o777 == 0o600
    assert len(first) > 30
    assert [p.name for p in tmp_path.iterdir()] == ["login"]
    (tmp_path / "login").write_text("")
    with pytest.raises(RunError, match="login is empty; delete it"):
        login_of(tmp_path)
    monkeypatch.setenv(LOGIN, "me:é")
    with pytest.raises(RunError, match=r"the variable .* has characters other than ASCII's"):
        login_of(tmp_path)
    monkeypatch.setenv(LOGIN, "me:mine")
    assert login_of(tmp_path) == ("me:mine", f"the variable {LOGIN}")
