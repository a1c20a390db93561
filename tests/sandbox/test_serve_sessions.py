"""Sessions over HTTP, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.sandbox.processes import wait_until
from tests.sandbox.test_serve import TOKEN, post, serving
from verizero import sandbox
from verizero.pipeline.errors import SessionError
from verizero.sandbox.client import Client
from verizero.sandbox.serve import SandboxService, SessionTerms

pytestmark = pytest.mark.integration  # a server

_TERMS = SessionTerms(sandbox.Quota(calls=40, disk_mib=4), max_sessions=4, expires_s=600.0)


@pytest.fixture(scope="module")
def pool() -> Iterator[sandbox.Pool]:
    with sandbox.Pool(workers=1) as made:
        yield made


@pytest.fixture(scope="module")
def server(pool: sandbox.Pool) -> Iterator[SandboxService]:
    with serving(pool, limits=sandbox.Limits(wall_s=5, cpu_s=1, processes=8), sessions=_TERMS) as made:
        yield made


def test_a_client_opens_calls_and_closes(server: SandboxService) -> None:
    client = Client(server.address, TOKEN)
    with client.session(seed=3) as session:
        session.write("d/f", b"\xff\x00")
        first = session.python("import random; x = random.random(); print(x, open('d/f', 'rb').read())")
        assert (first.status, first.level) == ("passed", session.level)
        assert session.shell("cd d; ls").stdout == "f\n"
        assert session.python("print(x, end='')").stdout == first.stdout.split()[0]
        assert session.read("d/f") == b"\xff\x00"
        other = client.session()
        other.close()
        with pytest.raises(SessionError, match="no such session"):
            other.python("1")
        with pytest.raises(SessionError, match="no such session"):
            other.close()
        assert session.python("while True: pass", cpu_s=0.2).status == "cpu_limit"
        with pytest.raises(ValueError, match="422"):
            session.read("../x")
        with pytest.raises(ValueError, match="at most"):
            session.python("#" * 200_000)
    with client.session(seed=3) as again, local(server, seed=3) as here:
        code = "import random; print(random.random(), hash('a'))"
        assert again.python(code).stdout == here.python(code).stdout
    assert "sandbox_sessions 0" in server.metrics()


def local(server: SandboxService, **settings: Any) -> sandbox.Session:
    return sandbox.Session(server.tools(), **settings)


@pytest.mark.parametrize(
    ("act", "body", "named"),
    [
        ("open", {"seed": "1"}, "seed"),
        ("open", {"seed": True}, "seed"),
        ("open", {"seed": -1}, "seed"),
        ("open", {"sed": 1}, "sed is an unknown field"),
        ("open", {"limits": {"wall": 1}}, "limits: unknown ['wall']"),
        ("open", {"limits": {"wall_s": "1"}}, "limits.wall_s"),
        ("open", {"limits": [1]}, "limits: Input should be a valid dictionary"),
        ("open", {"quota": {"calls": -1}}, "quota.calls"),
        ("open", {"quota": {"idle_s": True}}, "quota.idle_s"),
        ("call", {"kind": "perl"}, "kind"),
        ("call", {"kind": ["python"]}, "kind"),
        ("call", {"kind": "python"}, "code is missing"),
        ("call", {"kind": "python", "code": 1}, "code: Input should be a valid string"),
        ("call", {"kind": "python", "code": "1", "line": "2"}, "line is an unknown field"),
        ("call", {"kind": "python", "code": "1", "wall_s": 0}, "wall_s"),
        ("call", {"kind": "shell", "line": "1", "cpu_s": "9"}, "cpu_s"),
        ("call", {"kind": "shell", "line": "a\u0000b"}, "NUL"),
        ("call", {"kind": "write", "path": "x", "data": "?"}, "base64"),
        ("call", {"kind": "write", "path": "/x", "data": ""}, "path"),
        ("call", {"kind": "read", "path": 3}, "path: Input should be a valid string"),
        ("call", {"kind": "write", "path": "x", "data": 3}, "data: must be text in base64"),
    ],
)
def test_bad_requests_are_refused_by_name(server: SandboxService, act: str, body: dict[str, Any], named: str) -> None:
    client = Client(server.address, TOKEN)
    with client.session() as session:
        wanted = body if act == "open" else {"session": session._name} | body
        code, reply = post(server, f"/sessions/{act}", wanted)
        assert code == 422
        assert named in reply["error"]
        assert session.python("print(1)").stdout == "1\n", "the session does not suffer"


def test_limits_and_quota_above_the_services_are_refused(server: SandboxService) -> None:
    client = Client(server.address, TOKEN)
    for asked, named in (({"limits": {"cpu_s": 900}}, "limits.cpu_s: 900"), ({"quota": {"calls": 900}}, "quota.calls")):
        with pytest.raises(ValueError, match=named):
            client.session(**asked)
    with client.session() as session:
        assert session.python("while True: pass", cpu_s=900).status == "cpu_limit"
        with pytest.raises(ValueError, match=r"no room|space"):
            session.write("big", b"x" * (5 << 20))
        for _ in range(39):
            session.python("1")
        assert "40 calls of 40" in session.python("1").error


def test_sessions_are_counted_and_their_names_are_secret(server: SandboxService) -> None:
    client = Client(server.address, TOKEN)
    sessions = [client.session() for _ in range(4)]
    assert len({s._name for s in sessions}) == 4
    assert post(server, "/sessions/open", {})[0] == 503
    for name, code in (("0" * 32, 410), ("", 410), (7, 422), (None, 422), ([sessions[0]._name], 422)):
        assert post(server, "/sessions/call", {"session": name, "kind": "python", "code": "1"})[0] == code
    for session in sessions:
        session.close()
    assert post(server, "/sessions/close", {"session": sessions[0]._name})[0] == 410


def test_a_token_guards_sessions_too(pool: sandbox.Pool) -> None:
    with serving(pool) as server:
        assert post(server, "/sessions/open", {}, "")[0] == 401
        code, reply = post(server, "/sessions/open", {})
        assert code == 200
        assert post(server, "/sessions/close", {"session": reply["session"]}, "")[0] == 401
        with pytest.raises(ValueError, match="401"):
            Client(server.address, "wrong").session()
    with pytest.raises(SessionError, match="no service"):
        Client(server.address, TOKEN).session()


def test_sessions_that_nobody_calls_are_closed(pool: sandbox.Pool) -> None:
    with serving(pool, sessions=SessionTerms(expires_s=10.0)) as server:
        sessions = server.sessions
        now = 0.0
        sessions.clock = lambda: now
        client = Client(server.address, TOKEN)
        session = client.session()
        for now in (8.0, 16.0, 24.0):  # noqa: B007  the clock reads it
            assert session.python("1").passed
        now = 35.0
        with pytest.raises(SessionError, match="expired"):
            session.python("1")
        assert len(sessions) == 0


def test_the_time_of_a_call_does_not_count_as_time_without_calls(pool: sandbox.Pool) -> None:
    with serving(pool, sessions=SessionTerms(expires_s=10.0)) as server:
        sessions = server.sessions
        now = 0.0
        sessions.clock = lambda: now
        client = Client(server.address, TOKEN)
        session = client.session()
        with ThreadPoolExecutor(1) as calls:
            long = calls.submit(session.python, "import time; time.sleep(0.5); print('done')")
            assert wait_until(lambda: any(each.calls for each in sessions._open.values()), 10)
            now = 100.0  # far more than it may stay without calls
            with client.session():  # the service looks for expired sessions before it opens another
                assert len(sessions) == 2
            assert long.result().stdout == "done\n"
        now = 109.0
        assert session.python("1").passed


def test_a_lost_session_is_no_answer(server: SandboxService) -> None:
    with Client(server.address, TOKEN).session() as session:
        session.python("import time; print(time.time_ns())")
        server.sessions._open[session._name].session.fold()  # its next call repeats this one, which answers differently
        with pytest.raises(SessionError, match="502"):
            session.python("1")
