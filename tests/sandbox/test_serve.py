"""The HTTP service and its client, over real sockets, with real programs."""

import json
import threading
import urllib.error
import urllib.request

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
TOKEN = "secret"
LIMITS = sandbox.Limits(wall_s=3, cpu_s=1)


def ask(server, path, data=None, token=TOKEN):
    """Return status and answer of a request: POST if there is `data`."""
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(server.address + path, body, {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as exc:
        return exc.code, json.load(exc)


@pytest.fixture(scope="module")
def server(pool):
    with SandboxService(pool, token=TOKEN) as made:
        yield made


def by_client(server, *trials, token=TOKEN):
    """Return the results of a client of this service."""
    return Client(server.address, token).run_many(trials)


def test_bad_requests_are_told_why(server):
    call = {"fn": "f", "args": [], "expected": 1}
    for change, named in (
        ({"tests": []}, "empty"),
        ({"tests": [1]}, "tests.0"),
        ({"program": None}, "program"),
        ({"language": "cobol"}, "cobol"),
        ({"tests": [call], "mode": "function", "language": "bash"}, "function"),
        ({"mode": "magic"}, "mode"),
        ({"limits": {"speed": 1}}, "speed"),
        ({"limits": {"cpu_s": True}}, "limits.cpu_s"),
        ({"limits": {"cpu_s": 1e300}}, "cpu_s must be"),
        ({"stop_on_failure": "no"}, "stop_on_failure"),
        ({"flavour": 1}, "flavour"),
        ({"encoded_tests": "[]"}, "not both"),
        ({"tests": None, "encoded_tests": "[" * 100_000}, "encoded"),
        ({"tests": None, "encoded_tests": "{}"}, "encoded"),
    ):
        request = {"program": PYTHON, "tests": TESTS} | change
        code, reply = ask(server, "/run", {k: v for k, v in request.items() if v is not None})
        assert (code, named in reply["error"]) == (422, True), (change, reply)
    assert ask(server, "/run", [PYTHON])[0] == 400
    for path, named in (("/sessions/open", "/run"), ("/health", "POST /health"), ("/elsewhere", "/run")):
        code, reply = ask(server, path, {"a": 1})
        assert (code, named in reply["error"]) == (404, True), reply


def test_a_token_is_asked_for(server, pool):
    trial = {"program": PYTHON, "tests": TESTS}
    assert ask(server, "/health")[1]["level"] == pool.isolation.level
    for path, data in (("/run", trial), ("/health", None), ("/", None)):
        assert ask(server, path, data, "wrong")[0] == 401
    (refused,) = by_client(server, sandbox.Trial(PYTHON, TESTS), token="wrong")
    assert "401" in refused.error
    with SandboxService(pool) as other:
        assert ask(other, "/run", trial, other.token)[1]["passed"]


def test_past_the_queue_bound_others_are_turned_away(pool, monkeypatch):
    monkeypatch.setattr(serve, "MAX_WAITING", 2)
    trial, codes = {"program": PYTHON, "tests": TESTS[:1]}, []
    with SandboxService(pool, token=TOKEN) as server:
        threads = [threading.Thread(target=lambda: codes.append(ask(server, "/run", trial)[0])) for _ in range(2)]
        for _ in range(pool.size):
            pool._free.acquire()  # every worker is busy
        try:
            for thread in threads:
                thread.start()
            assert wait_until(lambda: server.waiting == 2)
            refused = [ask(server, "/run", trial) for _ in range(3)]
        finally:
            for _ in range(pool.size):
                pool._free.release()
            for thread in threads:
                thread.join()
        assert server.waiting == 0
    assert [code for code, _ in refused] == [429] * 3
    assert all("2" in reply["error"] for _, reply in refused)
    assert codes == [200, 200]


def test_the_client_goes_elsewhere_when_a_service_dies(pool):
    trials = [sandbox.Trial(f"print(int(input()) * {i})", TESTS) for i in range(12)]
    with SandboxService(pool, token=TOKEN) as first, SandboxService(pool, token=TOKEN) as second:
        killer = threading.Timer(0.05, first.close)
        killer.start()
        results = Client([first.address, second.address], TOKEN).run_many(trials)
        killer.join()
    assert [i for i, r in enumerate(results) if r.passed] == [2]
    assert "sandbox_error" not in {r.status for r in results}


def test_a_request_gets_the_limits_that_it_asks_for(server):
    big, limits = "print(len(bytearray(700 << 20)))", sandbox.Limits(cpu_s=10, memory_mib=1024, output_kib=4096)
    test = {"input": "", "output": str(700 << 20)}
    results = by_client(server, sandbox.Trial(big, [test], limits=limits), sandbox.Trial(big, [test]))
    assert [r.status for r in results] == ["passed", "memory_limit"]
    spins = {"program": "while True: pass", "tests": TESTS[:1], "limits": {"cpu_s": 0.1}}
    assert ask(server, "/run", spins)[1]["status"] == "cpu_limit"


def test_what_no_service_takes_is_not_sent():
    long = sandbox.Trial(PYTHON, [{"input": "x" * (65 << 20), "output": ""}])
    first, second = Client("http://127.0.0.1:9", TOKEN).run_many([long, long])
    assert (first.status, second.status) == ("sandbox_error", "sandbox_error")
    assert "a service takes 67108864" in first.error


def test_half_of_a_surrogate_pair_costs_its_own_program_alone(server):
    trials = [sandbox.Trial(program, TESTS, limits=LIMITS) for program in ("\ud800", PYTHON, 'print("\ud800")')]
    assert [r.status for r in by_client(server, *trials)] == ["runtime_error", "passed", "wrong_answer"]


def test_no_service_at_all_is_no_wrong_answer(monkeypatch):
    monkeypatch.setattr(clients, "_PAUSE_S", (0.01,))
    assert Client("http://127.0.0.1:9").run_many([sandbox.Trial(PYTHON, TESTS)])[0].status == "sandbox_error"
    with pytest.raises(ValueError, match="http"):
        Client("somewhere")


def test_values_come_back(server):
    tests = [{"fn": "f", "args": [2], "expected": None}, {"fn": "g", "args": [], "expected": None}]
    program = "def f(n): return {n: (1.5, {n}, 'ä')}\nclass A: pass\ndef g(): return A()"
    known = [{"fn": "f", "args": [n], "expected": n} for n in (1, 2, 3, 4)]
    answer, with_known = by_client(
        server,
        sandbox.Trial(program, tests, "function", LIMITS),
        sandbox.Trial("def f(n): return n % 2 * n", known, "function", LIMITS),
    )
    assert answer.tests[0].value == {2: (1.5, frozenset({2}), "ä")}
    assert repr(answer.tests[1].value) == "<A>"
    assert [t.status for t in answer.tests] == ["wrong_answer"] * 2
    assert [t.status for t in with_known.tests] == ["passed", "wrong_answer"] * 2
    values = [t.value for t in with_known.tests]
    assert values == [None, 0, None, None], "an expected value is known: the first error tells"


def test_other_languages_run_or_are_said_to_be_missing(server):
    for language, broken in (("c", "int main( {"), ("bash", "echo $(("), ("javascript", "console.log(")):
        jobs = [{"program": text, "tests": TESTS, "language": language} for text in (DOUBLE[language], broken)]
        (code, right), (_, wrong) = (ask(server, "/run", job) for job in jobs)
        if sandbox.available()[language]:
            assert (code, right["status"], wrong["status"]) == (200, "passed", "runtime_error"), (right, wrong)
        else:
            assert code == 503
    there = sorted(name for name, is_there in sandbox.available().items() if is_there)
    assert ask(server, "/health")[1]["languages"] == there


def test_a_service_says_when_no_worker_starts_and_when_one_does():
    with sandbox.Pool(workers=1) as own, SandboxService(own, token=TOKEN) as server:
        walls = ask(server, "/health")[1]["walls"]
        for worker in list(own._all):
            own._discard(worker)
        own._idle.clear()
        all_walls, own._walls = own._walls, frozenset({"seccomp"})  # as if the machine refused the others
        result = sandbox.run(PYTHON, TESTS, pool=own)
        assert (result.status, "level" in result.error) == ("sandbox_error", True)
        code, reply = ask(server, "/health")
        assert (code, "cannot start a worker" in reply["error"]) == (503, True)
        own._walls = all_walls
        assert ask(server, "/health")[1]["walls"] == walls
        assert sandbox.run(PYTHON, TESTS, pool=own).passed
