"""Requests at random for the sandbox's HTTP service: each gets an answer of its own, and the service stays.

python -m tests.sandbox.service_fuzz 20000   that many requests of each kind; `make test` draws a hundred
"""

from __future__ import annotations

import copy
import http.client
import json
import sys
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from verizero import sandbox
from verizero.sandbox.serve import SandboxService, SessionTerms

TOKEN = "secret"
LIMITS = sandbox.Limits(wall_s=2, cpu_s=0.2)
TERMS = SessionTerms(max_sessions=2, expires_s=1)
ANSWERS = {200, 400, 404, 410, 413, 422, 429}
"""Done, or refused for what the request says. 500, 502 and 503 are the service's own failures."""
JOB = {
    "program": "print(int(input()) * 2)", "tests": [{"input": "4", "output": "8"}], "language": "python",
    "mode": "stdin", "limits": {"cpu_s": 0.1, "wall_s": 1}, "stop_on_failure": True,
}  # fmt: skip
CALLED = {
    "program": "def f(x):\n    return {x: {1, 2.5}}", "tests": [{"fn": "f", "args": [1], "expected": 2}],
    "mode": "function",
}  # fmt: skip
CASES = [{"input": {"stdin": "4"}, "output": {"stdout": "8"}}]
BASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/run_code", {"code": "print(input())", "language": "python", "stdin": "3", "run_timeout": 1, "files": {}}),
    ("/run_code", {"code": "x", "compile_timeout": 1, "memory_limit_MB": 64, "fetch_files": []}),
    ("/submit", {"id": 7, "completion": "```python\n1\n```", "config": {"provided_data": {"test_cases": CASES}}}),
    ("/run", JOB),
    ("/run", CALLED),
    ("/run_many", {"jobs": [JOB, CALLED]}),
    ("/sessions/open", {"limits": {"cpu_s": 0.1}, "quota": {}, "seed": 3}),
    ("/sessions/call", {"session": "a", "kind": "python", "code": "1", "wall_s": 1, "cpu_s": 0.1}),
    ("/sessions/call", {"session": "a", "kind": "shell", "line": "ls", "cpu_s": 0.1}),
    ("/sessions/call", {"session": "a", "kind": "write", "path": "a", "data": "aGk="}),
    ("/sessions/close", {"session": "a"}),
)
"""Right requests, parts of which are changed."""

odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["\x00", "\ud800", "a" * 70_000, "../../etc/passwd", "1e999", "python", "cpp", "print(1)"])
    | st.sampled_from([10**400, -1, 2**63, 1e308, -0.0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@st.composite
def changed(draw: st.DrawFn) -> tuple[str, bytes]:
    """Return the path and the body of a right request with one to three of its parts changed, dropped or added."""
    path, base = draw(st.sampled_from(BASES))
    body: Any = {"": copy.deepcopy(base)}
    for _ in range(draw(st.integers(1, 3))):
        place, key = body, ""
        while isinstance(place[key], dict | list) and place[key] and (key == "" or draw(st.booleans())):  # type: ignore[call-overload]
            place = place[key]  # type: ignore[call-overload]
            key = draw(st.sampled_from(list(place) if isinstance(place, dict) else list(range(len(place)))))
        act = draw(st.sampled_from(["change", "change", "drop", "add"]))
        if act == "drop" and key != "":
            del place[key]
        elif act == "add" and isinstance(place[key], dict):  # type: ignore[call-overload]
            place[key][draw(st.text(max_size=8))] = draw(odd)  # type: ignore[call-overload]
        else:
            place[key] = draw(odd)  # type: ignore[call-overload]
    return path, json.dumps(body[""]).encode()


raw = st.tuples(
    st.sampled_from([path for path, _ in BASES] + ["/", "/health", "/metrics", "/%00"]), st.binary(max_size=60)
)


class Fuzz:
    """A service under random requests, and what it answered."""

    def __init__(self, service: SandboxService) -> None:
        self.service, self.counts = service, Counter[int]()

    def send(self, path: str, body: bytes) -> tuple[int, Any]:
        """Return the status and the answer of one request. Raises: ValueError for an answer that is no JSON."""
        host, port = self.service.address.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            connection.request("POST", path, body, {"Authorization": f"Bearer {TOKEN}"})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            connection.close()

    def check(self, path: str, body: bytes) -> None:
        """Send a request at random; a refusal says why."""
        status, answer = self.send(path, body)
        self.counts[status] += 1
        is_full = status == 503 and "sessions are open" in answer["error"]
        assert status in ANSWERS or is_full, (path, body[:300], status, answer)
        assert status == 200 or answer["error"], answer

    def is_well(self) -> bool:
        """True if a right request is graded as ever."""
        status, answer = self.send("/run", json.dumps(JOB).encode())
        return (status, answer.get("status"), answer.get("passed")) == (200, "passed", True)

    def draw(self, examples: int) -> None:
        """Send that many requests of each kind."""
        for kind in (changed(), raw):
            settings(max_examples=examples, deadline=None, database=None)(given(kind)(lambda sent: self.check(*sent)))()


if __name__ == "__main__":
    with (
        sandbox.Pool(workers=2) as pool,
        SandboxService(pool, token=TOKEN, limits=LIMITS, sessions=TERMS) as service,
    ):
        fuzz = Fuzz(service)
        fuzz.draw(int(sys.argv[1]))
        print(f"{fuzz.counts.total()} requests: {dict(sorted(fuzz.counts.items()))}; well after them: {fuzz.is_well()}")
