"""Where programs run: other languages, services over real sockets, the recipe's limits, and what cannot run there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.verifiers.fake_sandbox import FakeSandbox
from verizero import sandbox
from verizero.pipeline.errors import IsolationError
from verizero.pipeline.types import Attempt, Verdict
from verizero.sandbox import languages
from verizero.sandbox import settings as sandbox_settings
from verizero.sandbox.serve import SandboxService
from verizero.sandbox.settings import SandboxSettings, configure, current
from verizero.verifiers._sandbox_jobs import Job, SandboxParams, programs_of, runner
from verizero.verifiers.base import load
from verizero.verifiers.code import CodeParams, code, grade

ROOT = Path(__file__).resolve().parents[2]
DOUBLE = {"tests": [{"input": f"{n}\n", "output": f"{2 * n}\n"} for n in (4, 0, -7)]}
RIGHT = {
    "python": "print(int(input()) * 2)",
    "c": '#include <stdio.h>\nint main() { int n; scanf("%d", &n); printf("%d\\n", 2 * n); }',
    "cpp": "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << 2 * n << std::endl; }",
    "javascript": "const n = +require('fs').readFileSync(0, 'utf8'); console.log(2 * n);",
    "bash": "read n; echo $((2 * n))",
}
BROKEN = {
    "python": "print(int(input())",
    "c": "int main() { return }",
    "cpp": "int main() { std::cout }",
    "javascript": "console.log(",
    "bash": "echo $((",
}
UNIT = {"tests": "assert f([3]) == (3, {1})", "fn": "f"}
UNIT_ANSWER = "def f(x):\n    return (x[0], {1})"


@pytest.fixture(autouse=True)
def back_to_default() -> Iterator[None]:
    yield
    configure(SandboxSettings())


@contextmanager
def served(token: str | None = None) -> Iterator[SandboxService]:
    """A service of one worker."""
    with sandbox.Pool(workers=1) as pool, SandboxService(pool, token=token) as server:
        yield server


def counted(server: SandboxService) -> int:
    """Programs that the service has run."""
    return sum(server.statuses.values())


def judged(language: str, *programs: str) -> list[Verdict]:
    return code.bind({"language": language, "grading": "fraction"}).score([Attempt(p, DOUBLE) for p in programs])


@pytest.mark.integration
@pytest.mark.parametrize("language", list(RIGHT))
def test_programs_of_a_language_are_judged(language: str) -> None:
    programs = [RIGHT[language], RIGHT[language].replace("2", "3"), BROKEN[language]]
    right, wrong, broken = judged(language, *programs)
    if not sandbox.available()[language]:
        assert {right.status, wrong.status, broken.status} == {"sandbox_error"}
        return
    assert (right.status, right.score) == ("graded", 1.0), right.reason
    assert wrong.status == "graded"
    assert wrong.score == pytest.approx(1 / 3), "zero is right, tripled too"
    assert (broken.status, broken.score) == ("graded", 0.0)
    assert broken.reason.startswith("runtime_error")


@pytest.mark.parametrize("language", ["c", "cpp", "javascript", "bash"])
def test_a_tool_that_is_not_installed_is_named_and_is_no_wrong_answer(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    (said,) = judged(language, RIGHT[language])
    assert said.status == "sandbox_error"
    assert languages.LANGUAGES[language].tool in said.reason


@pytest.mark.integration
def test_jobs_of_several_kinds_come_back_in_order() -> None:
    kinds = ["python", "bash", "python", "bash", "bash"]
    jobs = [
        Job(RIGHT[kind], ({"input": "4", "output": "8" if i % 2 else "9"},), "stdin", kind)  # type: ignore[arg-type]
        for i, kind in enumerate(kinds)
    ]
    assert [o.status for o in runner(SandboxParams())(jobs)] == [
        "passed" if i % 2 else "wrong_answer" for i in range(len(kinds))
    ]


@pytest.mark.integration
def test_limits_are_the_recipes_where_the_verifier_names_none() -> None:
    configure(SandboxSettings(limits=sandbox.Limits(cpu_s=0.3, memory_mib=200)))
    assert SandboxParams().limits() == sandbox.Limits(cpu_s=0.3, memory_mib=200)
    assert SandboxParams(cpu_s=2, output_kib=7).limits() == sandbox.Limits(cpu_s=2, memory_mib=200, output_kib=7)
    (said,) = judged("python", "while True: pass")
    assert said.status == "timeout"
    assert "0.3" in said.reason


@pytest.mark.integration
def test_too_low_walls_are_an_error_of_the_sandbox_with_the_remedy() -> None:
    configure(SandboxSettings(min_level=3, workers=1))
    stands = sandbox.probe().level >= 3
    for language in ("python", "bash"):
        (said,) = judged(language, RIGHT[language])
        assert said.status == ("graded" if stands else "sandbox_error")
        assert stands or "sandbox.min_level" in said.reason


@pytest.mark.integration
def test_services_judge_as_this_machine_does() -> None:
    programs = [RIGHT["python"], "print(3)", BROKEN["python"], "import sys; sys.exit(0)"]
    here = judged("python", *programs)
    with served("same") as first, served("same") as second:
        configure(SandboxSettings(urls=(first.address, second.address), token="same"))
        there = judged("python", *programs)
        assert counted(first) + counted(second) == len(programs)
    assert [(v.status, v.score, v.reason) for v in there] == [(v.status, v.score, v.reason) for v in here]


@pytest.mark.integration
def test_functions_over_http_are_held_to_their_types() -> None:
    reference = {"fn": "f", "tests": [{"args": [1], "expected": (1, {2})}]}
    with served() as server:
        configure(SandboxSettings(urls=(server.address,), token=server.token))
        said = code.bind().score([Attempt(f"def f(x): return {v}", reference) for v in ("(1, {2})", "[1, {2}]")])
        assert [v.score for v in said] == [1.0, 0.0]
        assert counted(server) == 2


@pytest.mark.integration
def test_services_send_returned_values_back_and_run_other_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_settings, "_tool_pool", lambda: pytest.fail("nothing runs on this machine"))
    with served() as server:
        configure(SandboxSettings(urls=(server.address,), token=server.token))
        right, wrong = load("unit_tests").bind().score([Attempt(a, UNIT) for a in (UNIT_ANSWER, "def f(x): return 3")])
        assert (right.status, right.score) == ("graded", 1.0), right.reason
        assert (wrong.status, wrong.score) == ("graded", 0.0)
        seen = counted(server)
        assert seen > 1
        right, wrong, broken = judged("bash", RIGHT["bash"], "echo 3", BROKEN["bash"])
        assert (right.score, wrong.score, broken.score) == (1.0, 0.0, 0.0)
        assert broken.reason.startswith("runtime_error")
        assert counted(server) == seen + 3


@pytest.mark.integration
def test_a_service_without_the_tool_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verizero.sandbox.client._PAUSE_S", (0.0,))
    with served() as server:
        configure(SandboxSettings(urls=(server.address,), token=server.token))
        monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
        (said,) = judged("bash", RIGHT["bash"])
    assert said.status == "sandbox_error"
    assert "'bash'" in said.reason


@pytest.mark.integration
def test_a_service_that_dies_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verizero.sandbox.client._PAUSE_S", (0.0,))
    with served() as server:
        gone = server.address
    configure(SandboxSettings(urls=(gone,)))
    (said,) = judged("python", RIGHT["python"])
    assert said.status == "sandbox_error"
    assert gone in said.reason


@pytest.mark.integration
def test_a_wrong_token_is_no_wrong_answer() -> None:
    with served() as server:
        configure(SandboxSettings(urls=(server.address,), token="guess"))
        (said,) = judged("python", RIGHT["python"])
    assert said.is_infrastructure
    assert "401" in said.reason


def test_a_token_is_in_no_text() -> None:
    assert "secret" not in repr(SandboxSettings(urls=("http://a",), token="secret"))


@pytest.mark.integration
def test_settling_again_changes_nothing_and_elsewhere_ends_the_former_workers() -> None:
    configure(SandboxSettings(workers=1))
    pool = sandbox.default_pool()
    configure(SandboxSettings(workers=1))
    assert sandbox.default_pool() is pool
    assert pool.size == 1
    judged("bash", RIGHT["bash"])
    tools = sandbox_settings._tools
    assert tools is not None
    assert tools.size == 1
    configure(SandboxSettings(workers=2))
    assert sandbox.default_pool() is not pool
    assert current().workers == 2
    for closed in (pool, tools):
        with pytest.raises(IsolationError, match="closed"):
            closed.use(lambda worker: None)


@pytest.mark.parametrize(
    ("name", "params", "runs"),
    [
        ("code", {}, True),
        ("sql", {}, True),
        ("regex", {}, True),
        ("unit_tests", {}, True),
        ("math", {}, False),
        ("combine", {"parts": [{"name": "math"}, {"name": "format", "gate": True}]}, False),
        ("combine", {"parts": [{"name": "math"}, {"name": "code"}]}, True),
        ("combine", {"parts": [{"name": "combine", "params": {"parts": [{"name": "sql"}]}}]}, True),
    ],
)
def test_who_runs_programs(name: str, params: dict[str, object], runs: bool) -> None:
    assert bool(programs_of(load(name).bind(params).params)) == runs


@pytest.mark.integration
def test_other_languages_take_the_last_fence_of_theirs() -> None:
    reply = "```python\nprint(1)\n```\n```bash\nread n; echo $((2 * n))\n```"
    real, fake = judged("bash", reply)[0], FakeSandbox()
    grade([Attempt(reply, DOUBLE)], CodeParams(language="bash"), fake)
    assert real.score == 1.0
    assert [j.program for j in fake.ran] == ["read n; echo $((2 * n))"]


@pytest.mark.integration
def test_nobody_who_programs_of_here_loads_the_network_client() -> None:
    call = (
        "import sys; from verizero.verifiers.base import load; load('code').bind(); "
        "print('verizero.sandbox.client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", call], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
