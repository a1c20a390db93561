"""Where programs run: other languages, services over real sockets, the recipe's limits, and what cannot run there."""

import shutil
import subprocess
import sys

import pytest

from tests.sandbox.doubling import DOUBLE, PYTHON
from tests.source import ROOT
from verizero import sandbox
from verizero.pipeline.errors import IsolationError
from verizero.pipeline.types import Attempt
from verizero.sandbox import languages
from verizero.sandbox.serve import SandboxService
from verizero.sandbox.settings import SandboxSettings, configure, current
from verizero.verifiers._sandbox_jobs import SandboxParams, programs_of
from verizero.verifiers.base import load
from verizero.verifiers.code import code

pytestmark = pytest.mark.usefixtures("default_sandbox")
TESTS = {"tests": [{"input": f"{n}\n", "output": f"{2 * n}\n"} for n in (4, 0, -7)]}
RIGHT = {"python": PYTHON, **DOUBLE}
UNIT = {"tests": "assert f([3]) == (3, {1})", "fn": "f"}
UNIT_ANSWER = "def f(x):\n    return (x[0], {1})"


def judged(language, *programs):
    return code.bind({"language": language, "grading": "fraction"}).score([Attempt(p, TESTS) for p in programs])


@pytest.mark.parametrize("language", ["c", "cpp", "javascript", "bash"])
def test_a_tool_that_is_not_installed_is_named_and_is_no_wrong_answer(language, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    (said,) = judged(language, RIGHT[language])
    assert said.status == "sandbox_error"
    assert languages.LANGUAGES[language].tool in said.reason


@pytest.mark.run
def test_limits_are_the_recipes_where_the_verifier_names_none():
    configure(SandboxSettings(limits=sandbox.Limits(cpu_s=0.3, memory_mib=200)))
    assert SandboxParams().limits() == sandbox.Limits(cpu_s=0.3, memory_mib=200)
    assert SandboxParams(cpu_s=2, output_kib=7).limits() == sandbox.Limits(cpu_s=2, memory_mib=200, output_kib=7)
    (said,) = judged("python", "while True: pass")
    assert said.status == "timeout"
    assert "0.3" in said.reason


@pytest.mark.run
def test_services_send_returned_values_back_and_run_other_languages(monkeypatch):
    monkeypatch.setattr("verizero.sandbox.api.run_many", lambda *_: pytest.fail("nothing runs on this machine"))
    with sandbox.Pool(workers=1) as pool, SandboxService(pool) as server:
        configure(SandboxSettings(urls=(server.address,), token=server.token))
        right, wrong = load("unit_tests").bind().score([Attempt(a, UNIT) for a in (UNIT_ANSWER, "def f(x): return 3")])
        assert (right.status, right.score) == ("graded", 1.0), right.reason
        assert (wrong.status, wrong.score) == ("graded", 0.0)
        seen = server.num_programs
        assert seen > 1
        right, wrong, broken = judged("bash", RIGHT["bash"], "echo 3", "echo $((")
        assert (right.score, wrong.score, broken.score) == (1.0, 0.0, 0.0)
        assert broken.reason.startswith("runtime_error")
        assert server.num_programs == seen + 3


def test_a_token_is_in_no_text():
    assert "secret" not in repr(SandboxSettings(urls=("http://a",), token="secret"))


@pytest.mark.run
def test_settling_again_changes_nothing_and_elsewhere_ends_the_former_workers():
    configure(SandboxSettings(workers=1))
    pool = sandbox.default_pool()
    configure(SandboxSettings(workers=1))
    assert sandbox.default_pool() is pool
    assert pool.size == 1
    judged("bash", RIGHT["bash"])
    tools = pool.with_tools()
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
        ("unit_tests", {}, True),
        ("math", {}, False),
        ("combine", {"parts": [{"name": "math"}, {"name": "format", "gate": True}]}, False),
        ("combine", {"parts": [{"name": "math"}, {"name": "code"}]}, True),
        ("combine", {"parts": [{"name": "combine", "params": {"parts": [{"name": "sql"}]}}]}, True),
    ],
)
def test_who_runs_programs(name, params, runs):
    assert bool(programs_of(load(name).bind(params).params)) == runs


@pytest.mark.run
def test_nobody_who_programs_of_here_loads_the_network_client():
    call = (
        "import sys; from verizero.verifiers.base import load; load('code').bind(); "
        "print('verizero.sandbox.client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", call], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
