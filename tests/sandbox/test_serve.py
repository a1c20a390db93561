"""The HTTP service and its client, over real sockets, with real programs."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.sandbox.doubling import DOUBLE, PYTHON
from tests.sandbox.processes import wait_until
from verizero import sandbox
from verizero.sandbox import client as clients
from verizero.sandbox import serve
from verizero.sandbox.client import Client
from verizero.sandbox.serve import SandboxService

pytestmark = pytest.mark.run  # a server

TESTS = [{"input": "4", "output": "8"}, {"input": "5", "output": "10"}]


@pytest.fixture(scope="module")
def pool() -> Iterator[sandbox.Pool]:
    with sandbox.Pool(workers=2) as made:
        yield made


TOKEN = "secret"
LIMITS = sandbox.Limits(wall_s=3, cpu_s=1)


def serving(pool: sandbox.Pool) -> SandboxService:
    """A service on a free port, for a `with` block."""
    return SandboxService(pool, token=TOKEN)


def post(server: SandboxService, path: str, data: Any, token: str = TOKEN) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        server.address + path, json.dumps(data).encode(), {"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as exc:
        return exc.code, json.load(exc)


def get(server: SandboxService, path: str) -> str:
    request = urllib.request.Request(server.address + path, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request) as reply:
        return str(reply.read().decode())


@pytest.fixture(scope="module")
def server(pool: sandbox.Pool) -> Iterator[SandboxService]:
    with serving(pool) as made:
        yield made


def test_bad_requests_are_told_why(server: SandboxService) -> None:
    for path, data, code, named in (
        ("/run", {"program": PYTHON, "tests": []}, 422, "empty"),
        ("/run", {"program": PYTHON, "tests": TESTS, "limits": {"speed": 1}}, 422, "speed"),
        ("/run", {"tests": TESTS}, 422, "program"),
        ("/run", {"program": "x", "tests": TESTS, "language": "cobol"}, 422, "cobol"),
        (
            "/run",
            {"program": "x", "tests": [{"fn": "f", "args": [], "expected": 1}], "mode": "function", "language": "bash"},
            422,
            "function",
        ),
        ("/run", [PYTHON], 400, "object"),
        ("/run", {"program": PYTHON, "tests": TESTS, "mode": "magic"}, 422, "mode"),
        ("/run", {"program": PYTHON, "tests": TESTS, "encoded_tests": "[]"}, 422, "not both"),
        ("/run", {"program": PYTHON, "tests": [1]}, 422, "tests.0"),
        ("/run", {"program": PYTHON, "tests": TESTS, "limits": {"cpu_s": True}}, 422, "limits.cpu_s"),
        ("/run", {"program": PYTHON, "tests": TESTS, "limits": {"cpu_s": -1}}, 422, "limits.cpu_s"),
        ("/run", {"program": PYTHON, "tests": TESTS, "limits": {"wall_s": 1e9}}, 422, "wall_s must be"),
        ("/run", {"program": PYTHON, "tests": TESTS, "limits": {"cpu_s": 1e300}}, 422, "cpu_s must be"),
        ("/run", {"program": PYTHON, "tests": TESTS, "limits": {"memory_mib": 2**40}}, 422, "of at most 1000000"),
        ("/run", {"program": PYTHON, "tests": TESTS, "stop_on_failure": "no"}, 422, "stop_on_failure"),
        ("/run", {"program": PYTHON, "tests": TESTS, "flavour": 1}, 422, "flavour"),
        ("/run", {"program": PYTHON, "encoded_tests": "[" * 100_000}, 422, "encoded"),
        ("/run", {"program": PYTHON, "encoded_tests": "{}"}, 422, "encoded"),
        ("/run", {"program": 2, "tests": TESTS}, 422, "program"),
        ("/sessions/open", {}, 404, "/run"),
        ("/health", {}, 404, "POST /health"),
        ("/elsewhere", {"a": 1}, 404, "/run"),
    ):
        got, reply = post(server, path, data)
        assert got == code
        assert named in reply["error"]


def test_health(server: SandboxService, pool: sandbox.Pool) -> None:
    health = json.loads(get(server, "/health"))
    assert health["level"] == pool.isolation.level
    assert health["waiting"] == 0


def test_a_token_is_asked_for(pool: sandbox.Pool) -> None:
    with SandboxService(pool) as server:
        assert post(server, "/run", {"program": PYTHON, "tests": TESTS}, "")[0] == 401
        assert post(server, "/run", {"program": PYTHON, "tests": TESTS}, server.token)[1]["passed"]
        (refused,) = Client(server.address, "wrong").run_many([sandbox.Trial(PYTHON, TESTS)])
        assert "401" in refused.error
        for path in ("/health", "/"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(server.address + path)


def test_past_the_queue_bound_others_are_turned_away(pool: sandbox.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MAX_WAITING", 2)
    trial, codes = {"program": PYTHON, "tests": TESTS[:1]}, list[int]()
    with serving(pool) as server:
        threads = [threading.Thread(target=lambda: codes.append(post(server, "/run", trial)[0])) for _ in range(2)]
        for _ in range(pool.size):
            pool._free.acquire()  # every worker is busy
        try:
            for thread in threads:
                thread.start()
            assert wait_until(lambda: server.waiting == 2)
            refused = [post(server, "/run", trial) for _ in range(3)]
        finally:
            for _ in range(pool.size):
                pool._free.release()
            for thread in threads:
                thread.join()
        assert server.waiting == 0
    assert [code for code, _ in refused] == [429] * 3
    assert all("2" in reply["error"] for _, reply in refused)
    assert codes == [200, 200]


def test_the_client_goes_elsewhere_when_a_service_dies(pool: sandbox.Pool) -> None:
    trials = [sandbox.Trial(f"print(int(input()) * {i})", TESTS) for i in range(12)]
    with serving(pool) as first, serving(pool) as second:
        killer = threading.Timer(0.05, first.close)
        killer.start()
        results = Client([first.address, second.address], TOKEN).run_many(trials)
        killer.join()
    assert [i for i, r in enumerate(results) if r.passed] == [2]
    assert "sandbox_error" not in {r.status for r in results}


def test_a_request_gets_the_limits_that_it_asks_for(pool: sandbox.Pool) -> None:
    big, limits = "print(len(bytearray(700 << 20)))", sandbox.Limits(cpu_s=10, memory_mib=1024, output_kib=4096)
    with serving(pool) as server:
        test = {"input": "", "output": str(700 << 20)}
        trials = [sandbox.Trial(big, [test], limits=limits), sandbox.Trial(big, [test])]
        assert [r.status for r in Client(server.address, TOKEN).run_many(trials)] == ["passed", "memory_limit"]
        _, reply = post(server, "/run", {"program": "while True: pass", "tests": TESTS[:1], "limits": {"cpu_s": 0.1}})
        assert reply["status"] == "cpu_limit"


def test_what_no_service_takes_is_not_sent(server: SandboxService) -> None:
    long = sandbox.Trial(PYTHON, [{"input": "x" * (65 << 20), "output": ""}])
    first, second = Client("http://127.0.0.1:9", TOKEN).run_many([long, long])
    assert (first.status, second.status) == ("sandbox_error", "sandbox_error")
    assert "a service takes 67108864" in first.error
    body = b'{"program": "' + b"x" * (150 << 20) + b'"}'
    connection = http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=300)
    connection.request("POST", "/run", body, {"Authorization": f"Bearer {TOKEN}"})
    assert connection.getresponse().status == 413
    connection.close()


def test_half_of_a_surrogate_pair_costs_its_own_program_alone(server: SandboxService) -> None:
    trials = [sandbox.Trial(program, TESTS, limits=LIMITS) for program in ("\ud800", PYTHON, 'print("\ud800")')]
    results = Client(server.address, TOKEN).run_many(trials)
    assert [r.status for r in results] == ["runtime_error", "passed", "wrong_answer"]


def test_no_service_at_all_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_PAUSE_S", (0.01,))
    assert Client("http://127.0.0.1:9").run_many([sandbox.Trial(PYTHON, TESTS)])[0].status == "sandbox_error"
    with pytest.raises(ValueError, match="http"):
        Client("somewhere")


def test_values_come_back(server: SandboxService) -> None:
    tests = [{"fn": "f", "args": [2], "expected": None}, {"fn": "g", "args": [], "expected": None}]
    program = "def f(n): return {n: (1.5, {n}, 'ä')}\nclass A: pass\ndef g(): return A()"
    (answer,) = Client(server.address, TOKEN).run_many([sandbox.Trial(program, tests, "function", LIMITS)])
    assert answer.tests[0].value == {2: (1.5, frozenset({2}), "ä")}
    assert repr(answer.tests[1].value) == "<A>"
    assert [t.status for t in answer.tests] == ["wrong_answer"] * 2
    known = [{"fn": "f", "args": [n], "expected": n} for n in (1, 2, 3, 4)]
    (answer,) = Client(server.address, TOKEN).run_many(
        [sandbox.Trial("def f(n): return n % 2 * n", known, "function", LIMITS)]
    )
    assert [t.status for t in answer.tests] == ["passed", "wrong_answer"] * 2
    assert [t.value for t in answer.tests] == [None, 0, None, None], "an expected value is known: the first error tells"


def test_other_languages_run_or_are_said_to_be_missing(server: SandboxService) -> None:
    for language, broken in (("c", "int main( {"), ("bash", "echo $(("), ("javascript", "console.log(")):
        jobs = [{"program": text, "tests": TESTS, "language": language} for text in (DOUBLE[language], broken)]
        (code, right), (_, wrong) = (post(server, "/run", job) for job in jobs)
        if sandbox.available()[language]:
            assert (code, right["status"], wrong["status"]) == (200, "passed", "runtime_error"), (right, wrong)
        else:
            assert code == 503
    there = sorted(name for name, is_there in sandbox.available().items() if is_there)
    assert json.loads(get(server, "/health"))["languages"] == there
