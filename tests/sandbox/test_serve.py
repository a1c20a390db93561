"""The HTTP service and its client, over real sockets, with real programs."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sandbox.doubling import DOUBLE, PYTHON
from tests.sandbox.processes import wait_until
from verizero import sandbox
from verizero.sandbox import client as clients
from verizero.sandbox.client import Client
from verizero.sandbox.serve import SandboxService

pytestmark = pytest.mark.integration  # a server

TESTS = [{"input": "4", "output": "8"}, {"input": "5", "output": "10"}]


@pytest.fixture(scope="module")
def pool() -> Iterator[sandbox.Pool]:
    with sandbox.Pool(workers=2) as made:
        yield made


TOKEN = "secret"
LIMITS = sandbox.Limits(wall_s=3, cpu_s=1)


def serving(pool: sandbox.Pool, **settings: Any) -> SandboxService:
    """A service on a free port, for a `with` block."""
    return SandboxService(pool, token=TOKEN, **settings)


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
    with serving(pool, limits=LIMITS) as made:
        yield made


def test_run_code_has_the_shape_that_others_speak(server: SandboxService) -> None:
    code, reply = post(server, "/run_code", {"code": PYTHON, "language": "python", "stdin": "21", "run_timeout": 1})
    assert (code, reply["status"]) == (200, "Success")
    assert reply["run_result"] | {"execution_time": 0} == {
        "status": "Finished", "execution_time": 0, "return_code": 0, "stdout": "42\n", "stderr": "",
    }  # fmt: skip
    _, reply = post(server, "/run_code", {"code": "read n; echo $((n * 2))", "language": "bash", "stdin": "21"})
    assert (reply["status"], reply["run_result"]["stdout"]) == ("Success", "42\n")
    _, reply = post(server, "/run_code", {"code": "import sys\nprint('note', file=sys.stderr)"})
    assert (reply["run_result"]["return_code"], reply["run_result"]["stderr"]) == (0, "note")
    _, reply = post(server, "/run_code", {"code": "exit 3", "language": "bash"})
    assert (reply["status"], reply["run_result"]["return_code"]) == ("Failed", 3)
    _, reply = post(server, "/run_code", {"code": "1 / 0"})
    assert (reply["status"], reply["run_result"]["return_code"]) == ("Failed", 1)
    assert "ZeroDivisionError" in reply["run_result"]["stderr"]


def test_a_request_above_the_limits_is_refused_with_field_and_limit(server: SandboxService) -> None:
    config = {"run_timeout": 2, "provided_data": {"test_cases": [{"input": "1", "output": "1"}]}}
    for path, data, named in (
        ("/run_code", {"code": "1", "run_timeout": 500}, "run_timeout: 500 is above 3, the most of this service"),
        ("/run_code", {"code": "1", "memory_limit_MB": 9000}, "memory_limit_MB: 9000 is above 512"),
        ("/submit", {"completion": "1", "config": config}, "run_timeout: 2 is above 1"),
        ("/run", {"program": "1", "tests": TESTS, "limits": {"output_kib": 4096}}, "limits.output_kib: 4096"),
        ("/sessions/open", {"quota": {"calls": 1e9}}, "quota.calls: 1e+09 is above 10000"),
    ):
        code, reply = post(server, path, data)
        assert (code, named in reply["error"]) == (422, True), reply
    with pytest.raises(ValueError, match=r"limits.wall_s: 10 is above 3"):
        Client(server.address, TOKEN).run(PYTHON, TESTS, limits=sandbox.Limits())
    assert Client(server.address, TOKEN).run(PYTHON, TESTS).passed, "the service's own limits"
    _, reply = post(server, "/run_code", {"code": "while True: pass"})
    assert reply["run_result"]["status"] == "TimeLimitExceeded"
    assert reply["run_result"]["stderr"].endswith(" of 1")
    _, reply = post(server, "/run", {"program": "while True: pass", "tests": TESTS[:1], "limits": {"cpu_s": 0.1}})
    assert reply["status"] == "cpu_limit"


def test_submit_grades_the_last_block(server: SandboxService) -> None:
    cases = [
        {"input": {"stdin": "4"}, "output": {"stdout": "8"}},
        {"input": {"stdin": "5"}, "output": {"stdout": "11"}},
    ]
    completion = f"First\n```python\nprint('no')\n```\nthen\n```python\n{PYTHON}\n```\n"
    _, reply = post(
        server, "/submit", {"id": 7, "completion": completion, "config": {"provided_data": {"test_cases": cases}}}
    )
    assert (reply["id"], reply["accepted"], [t["passed"] for t in reply["tests"]]) == (7, False, [True, False])


def test_bad_requests_are_told_why(server: SandboxService) -> None:
    for path, data, code, named in (
        ("/run", {"program": PYTHON, "tests": []}, 422, "empty"),
        ("/run", {"program": PYTHON, "tests": TESTS, "limits": {"speed": 1}}, 422, "speed"),
        ("/run", {"tests": TESTS}, 422, "program"),
        ("/run_code", {"code": "x", "language": "cobol"}, 422, "cobol"),
        ("/run", {"program": "x", "tests": TESTS, "language": "cobol"}, 422, "cobol"),
        (
            "/run",
            {"program": "x", "tests": [{"fn": "f", "args": [], "expected": 1}], "mode": "function", "language": "bash"},
            422,
            "function",
        ),
        ("/run_code", {"code": "x", "files": {"a": "aGk="}}, 422, "files"),
        ("/submit", {"completion": "x"}, 422, "provided_data"),
        ("/submit", {"completion": "x", "config": {"provided_data": {"test_cases": [1]}}}, 422, "test_cases"),
        ("/submit", {"completion": "x", "config": []}, 422, "config"),
        ("/submit", {"completion": ["x"]}, 422, "completion"),
        ("/submit", {"completion": "x", "id": 1e999}, 400, "JSON"),
        ("/run_code", {"code": 1}, 422, "code"),
        ("/run_code", {"code": "x", "stdin": 7}, 422, "stdin"),
        ("/run_code", {"code": "x", "run_timeout": 0}, 422, "run_timeout"),
        ("/run_code", {"code": "x", "run_timeout": "5"}, 422, "run_timeout"),
        ("/run_code", {"code": "x", "memory_limit_MB": []}, 422, "memory_limit_MB"),
        ("/run_code", {"code": "x", "language": ["python"]}, 422, "language"),
        ("/run", [PYTHON], 400, "object"),
        ("/run", {"program": PYTHON, "tests": TESTS, "mode": "magic"}, 422, "mode"),
        ("/run", {"program": PYTHON, "tests": TESTS, "encoded_tests": "[]"}, 422, "not both"),
        ("/run", {"program": PYTHON, "tests": [1]}, 422, "tests.0"),
        ("/run", {"program": PYTHON, "tests": TESTS, "limits": {"cpu_s": True}}, 422, "limits.cpu_s"),
        ("/run", {"program": PYTHON, "tests": TESTS, "limits": {"cpu_s": -1}}, 422, "limits.cpu_s"),
        ("/run", {"program": PYTHON, "tests": TESTS, "stop_on_failure": "no"}, 422, "stop_on_failure"),
        ("/run", {"program": PYTHON, "tests": TESTS, "flavour": 1}, 422, "flavour"),
        ("/run", {"program": PYTHON, "encoded_tests": "[" * 100_000}, 422, "encoded"),
        ("/run", {"program": PYTHON, "encoded_tests": "{}"}, 422, "encoded"),
        ("/run_many", {"jobs": 3}, 422, "jobs"),
        ("/run_many", {"jobs": [{"program": PYTHON, "tests": TESTS}, {"program": 2}]}, 422, "jobs.1.program"),
        ("/health", {}, 404, "POST /health"),
        ("/elsewhere", {"a": 1}, 404, "/run_code"),
    ):
        got, reply = post(server, path, data)
        assert got == code
        assert named in reply["error"]


def test_health_and_metrics(server: SandboxService, pool: sandbox.Pool) -> None:
    post(server, "/run", {"program": PYTHON, "tests": TESTS})
    health = json.loads(get(server, "/health"))
    assert health["level"] == pool.isolation.level
    assert (health["limits"]["cpu_s"], health["limits"]["memory_mib"], health["quota"]["disk_mib"]) == (1, 512, 64)
    lines = get(server, "/metrics").splitlines()
    counted = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}
    assert counted['sandbox_programs_total{status="passed"}'] >= 1
    assert counted["sandbox_waiting"] == 0


def test_a_token_is_asked_for(pool: sandbox.Pool) -> None:
    with SandboxService(pool) as server:
        assert post(server, "/run", {"program": PYTHON, "tests": TESTS}, "")[0] == 401
        assert post(server, "/run", {"program": PYTHON, "tests": TESTS}, server.token)[1]["passed"]
        assert Client(server.address, server.token).run(PYTHON, TESTS).passed
        with pytest.raises(ValueError, match="401"):
            Client(server.address, "wrong").run(PYTHON, TESTS)
        for path in ("/health", "/metrics", "/"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(server.address + path)


def test_past_the_queue_bound_others_are_turned_away(pool: sandbox.Pool) -> None:
    trial, codes = {"program": PYTHON, "tests": TESTS[:1]}, list[int]()
    with serving(pool, max_queue=2) as server:
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
        refused += [post(server, "/run_many", {"jobs": [trial] * count}) for count in (3, 3000)]
        assert server.waiting == 0
        assert len(post(server, "/run_many", {"jobs": [trial] * 2})[1]["results"]) == 2
        assert post(server, "/run_many", {"jobs": []}) == (200, {"results": []})
    assert [code for code, _ in refused] == [429] * 5
    assert all("2" in reply["error"] for _, reply in refused)
    assert codes == [200, 200]
    with pytest.raises(ValueError, match="max_queue"):
        serving(pool, max_queue=0)


def test_the_client_goes_elsewhere_when_a_service_dies(pool: sandbox.Pool) -> None:
    trials = [sandbox.Trial(f"print(int(input()) * {i})", TESTS) for i in range(12)]
    with serving(pool) as first, serving(pool) as second:
        killer = threading.Timer(0.05, first.close)
        killer.start()
        results = Client([first.address, second.address], TOKEN).run_many(trials)
        killer.join()
    assert [i for i, r in enumerate(results) if r.passed] == [2]
    assert "sandbox_error" not in {r.status for r in results}


def test_values_keep_their_types_on_the_way(server: SandboxService) -> None:
    tests = [{"fn": "f", "args": [(1, 2), {3: "x"}], "expected": (2, {3})}]
    program = "def f(a, d): return (a[1], set(d))"
    assert Client(server.address, TOKEN).run(program, tests, mode="function").passed
    assert not Client(server.address, TOKEN).run("def f(a, d): return [a[1], set(d)]", tests, mode="function").passed


def test_a_request_may_raise_the_defaults_up_to_the_most(pool: sandbox.Pool) -> None:
    """The payload of verl's client, and a verifier with limits above the sandbox's defaults."""
    big, limits = "print(len(bytearray(700 << 20)))", sandbox.Limits(cpu_s=10, memory_mib=1024, output_kib=4096)
    with serving(pool) as server:
        payload = {
            "code": big, "language": "python", "stdin": "", "compile_timeout": 10, "run_timeout": 10,
            "memory_limit_MB": 1024, "files": {}, "fetch_files": [],
        }  # fmt: skip
        assert post(server, "/run_code", payload)[1]["run_result"]["stdout"] == f"{700 << 20}\n"
        test = {"input": "", "output": str(700 << 20)}
        assert Client(server.address, TOKEN).run(big, [test], limits=limits).passed
        assert Client(server.address, TOKEN).run(big, [test]).status == "memory_limit"


def test_a_bad_job_costs_no_other_its_result(server: SandboxService) -> None:
    good, bad = {"program": PYTHON, "tests": TESTS}, {"program": PYTHON, "tests": [{"input": 5, "output": "x"}] * 2}
    code, reply = post(server, "/run_many", {"jobs": [good, bad, {**good, "limits": {"cpu_s": 99}}, good]})
    assert (code, [r["status"] for r in reply["results"]]) == (200, ["passed", *["sandbox_error"] * 2, "passed"])
    assert "test 0" in reply["results"][1]["tests"][1]["error"]
    assert "limits.cpu_s" in reply["results"][2]["tests"][0]["error"]


def test_what_no_service_takes_is_not_sent(server: SandboxService) -> None:
    long = sandbox.Trial(PYTHON, [{"input": "x" * (65 << 20), "output": ""}])
    first, second = Client("http://127.0.0.1:9", TOKEN).run_many([long, long])
    assert (first.status, second.status) == ("sandbox_error", "sandbox_error")
    assert "a service takes 67108864" in first.error
    body = b'{"code": "' + b"x" * (150 << 20) + b'"}'
    request = urllib.request.Request(server.address + "/run_code", body, {"Authorization": f"Bearer {TOKEN}"})
    with pytest.raises(urllib.error.HTTPError, match="413"):
        urllib.request.urlopen(request, timeout=300)


def test_half_of_a_surrogate_pair_costs_its_own_program_alone(server: SandboxService) -> None:
    trials = [sandbox.Trial(program, TESTS, limits=LIMITS) for program in ("\ud800", PYTHON, 'print("\ud800")')]
    results = Client(server.address, TOKEN).run_many(trials)
    assert [r.status for r in results] == ["runtime_error", "passed", "wrong_answer"]


def test_no_service_at_all_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_PAUSE_S", (0.01,))
    assert Client("http://127.0.0.1:9").run(PYTHON, TESTS).status == "sandbox_error"
    with pytest.raises(ValueError, match="http"):
        Client("somewhere")


def test_values_come_back_when_asked_for(server: SandboxService) -> None:
    tests = [{"fn": "f", "args": [2], "expected": None}, {"fn": "g", "args": [], "expected": None}]
    program = "def f(n): return {n: (1.5, {n}, 'ä')}\nclass A: pass\ndef g(): return A()"
    trial = sandbox.Trial(program, tests, "function", LIMITS, values=True)
    (answer,) = Client(server.address, TOKEN).run_many([trial])
    assert answer.tests[0].value == {2: (1.5, frozenset({2}), "ä")}
    assert repr(answer.tests[1].value) == "<A>"
    (silent,) = Client(server.address, TOKEN).run_many([sandbox.Trial(program, tests, "function", LIMITS)])
    assert [t.value for t in silent.tests] == [None, None]
    assert [t.status for t in silent.tests] == [t.status for t in answer.tests] == ["wrong_answer"] * 2


@pytest.mark.parametrize(
    ("language", "broken"), [("c", "int main( {"), ("bash", "echo $(("), ("nodejs", "console.log(")]
)
def test_other_languages_have_every_shape(server: SandboxService, language: str, broken: str) -> None:
    name = {"nodejs": "javascript"}.get(language, language)
    right = DOUBLE[name]
    if not sandbox.available()[name]:
        assert post(server, "/run", {"program": right, "tests": TESTS, "language": language})[0] == 503
        return
    _, reply = post(server, "/run", {"program": right, "tests": TESTS, "language": language})
    assert reply["status"] == "passed", reply
    _, reply = post(server, "/run", {"program": broken, "tests": TESTS, "language": language})
    assert reply["status"] == "runtime_error"
    cases = [{"input": {"stdin": t["input"]}, "output": {"stdout": t["output"]}} for t in TESTS]
    config = {"language": language, "provided_data": {"test_cases": cases}}
    _, reply = post(server, "/submit", {"completion": f"```\n{right}\n```", "config": config})
    assert reply["accepted"], reply
    _, reply = post(server, "/run_code", {"code": broken, "language": language, "stdin": "4"})
    assert reply["status"] == "Failed"
    if language == "c":
        assert reply["compile_result"]["return_code"] == 1
        assert "error" in reply["compile_result"]["stderr"]
        assert reply["run_result"] is None


def test_health_names_the_languages(server: SandboxService) -> None:
    assert json.loads(get(server, "/health"))["languages"] == sorted(
        n for n, there in sandbox.available().items() if there
    )
