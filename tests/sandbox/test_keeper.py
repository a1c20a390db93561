"""A keeper serves many sessions: whatever one client asks, it is answered, and the sessions of others continue."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sandbox.across import open_session
from verizero import sandbox
from verizero.pipeline.errors import IsolationError, SessionError
from verizero.sandbox.process import WorkerDied

pytestmark = pytest.mark.integration  # workers of the sandbox

LEVEL_2 = ["landlock", "seccomp", "uid"]
NAMES: list[Any] = ["\ud800", "a\0b", "x" * 100_000, "/".join("d" * 3000), "", ".."]
ODD = [*NAMES, 7, None, [], {"a": b"\xff"}, math.nan, 10**400, b"\xff"]
ORDERS: list[Any] = [
    *({"do": do, "path": odd, "state": odd} for do in ("write", "read", "unpack") for odd in ODD),
    *({"do": do, "text": odd, "wall_s": 2.0, "cpu_s": 1.0} for do in ("python", "shell") for odd in ODD),
    *({"do": do, "text": "1", "wall_s": odd, "cpu_s": odd} for do in ("python", "shell") for odd in ODD),
    *({"do": odd} for odd in ODD if not isinstance(odd, float)),
    *({"do": do} for do in ("write", "read", "unpack", "python", "shell", "pack", "fold", "rebuild")),
    *([], "text", 7, None, {}, {"done": 1}),
]


@pytest.fixture(scope="module", params=[list(sandbox.WALLS), LEVEL_2], ids=["level3", "level2"])
def pool(request: pytest.FixtureRequest) -> Iterator[sandbox.Pool]:
    with sandbox.Pool(workers=1, walls=request.param, tools=sandbox.TOOLS) as made:
        yield made


def test_an_odd_order_is_answered_to_its_own_client(pool: sandbox.Pool) -> None:
    with open_session(pool) as other:
        assert other.python("x = 41").passed
        keeper = pool.keeper()
        for order in ORDERS:
            with open_session(pool) as session:
                session._open_connection().sock.settimeout(20)
                try:
                    answer, files = session._open_connection().ask(order)
                    assert isinstance(answer, dict), order
                    assert files == [] or order["do"] in ("read", "pack")
                except WorkerDied:
                    pass  # the order is larger than a packet, or its session was ended for it
            assert pool.keeper() is keeper, order
            assert keeper.worker.process.poll() is None, order
        assert other.python("print(x + 1)").stdout == "42\n"


@pytest.mark.parametrize("path", ["\ud800", "a\0b", "x" * 5000, "", ".", "../out", "a/" * 20 + "b" * 300])
def test_a_path_that_no_file_can_have_is_refused_by_name(pool: sandbox.Pool, path: str) -> None:
    with open_session(pool) as session, open_session(pool) as other:
        assert other.python("x = 41").passed
        with pytest.raises((ValueError, SessionError)):
            session.write(path, b"x")
        with pytest.raises((ValueError, SessionError, FileNotFoundError)):
            session.read(path)
        session.write("fine", b"y")
        assert session.read("fine") == b"y", "the session of the odd path serves on"
        assert other.python("print(x + 1)").stdout == "42\n"


@pytest.mark.parametrize("odd", [{"limits": (1,)}, {"idle_s": "long"}, {"idle_s": None}])
def test_a_session_that_cannot_begin_ends_no_other(pool: sandbox.Pool, odd: dict[str, Any]) -> None:
    order = {"limits": (1.0, 1.0, 64, 64, 8), "seed": 0, "idle_s": 9.0, "disk_mib": 8, "files": 99}
    with open_session(pool) as other:
        assert other.python("x = 41").passed
        pool.keeper().open(order).close()
        with pytest.raises(IsolationError):
            pool.keeper().open(order | odd)
        assert other.python("print(x + 1)").stdout == "42\n"
