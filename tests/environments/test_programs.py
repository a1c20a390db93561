"""Programs of the policy in the sandbox: repaired by failing tests, or run as tools."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.environments.talk import made, played, texts
from verizero import sandbox
from verizero.pipeline.environments.tools import _programs, python, shell
from verizero.pipeline.environments.tools._programs import Output
from verizero.pipeline.environments.tools.base import Toolbox
from verizero.pipeline.errors import DataError, EnvironmentFailed, IsolationError
from verizero.pipeline.types import Prompt
from verizero.sandbox.process import WorkerDied

LINE = {"fn": "f", "tests": [{"args": [x], "expected": 3 * x + 7} for x in range(1, 6)]}
STDIN = {"tests": [{"input": "3\n", "output": "6\n"}, {"input": "4\n", "output": "8\n"}]}
RIGHT = "def f(x): return 3*x+7"

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("def f(x): return 1*x+7", "f(1)=10 not 8"),
        ("def f(x): return 10", "f(2)=13 not 10"),
        ("def f(x): return None", "f(1)=10 not None"),
        ("def f(x): return y", "f(1)=10 not NameError: name 'y' is not defined"),
        ("def f(x: retur", "f(1)=10 not SyntaxError: "),
        ("g = 1", "f(1)=10 not "),
        ("def f(x):\n while 1: pass", "f(1)=10 not cpu limit"),
        ("", "wrong, try again"),
        ("<think>def f(x): return 3*x+7", "wrong, try again"),
    ],
)
def test_the_first_failing_test_is_shown(program: str, shown: str) -> None:
    environment = made("repair", LINE, cpu_s=0.3)
    replies = played(environment, [program, f"<think>slope</think>\n```python\n{RIGHT}\n```\nOutput:\n```\n13\n```"])
    (text,) = texts(replies)
    assert text.startswith(shown)
    assert replies[-1].outcome.is_correct


def test_programs_on_standard_input() -> None:
    replies = played(made("repair", STDIN), ["print(int(input())+3)", "print(int(input())*2)"])
    assert texts(replies) == ["input:\n4\n\nexpected:\n8\n\ngot:\n7"]
    assert replies[-1].outcome.is_correct


def test_the_tries_end_with_a_verdict_and_feedback_may_be_left_out() -> None:
    replies = played(made("repair", LINE, tries=2, feedback=False), ["def f(x): return x", "def f(x): return 10"])
    assert texts(replies) == ["wrong, try again"]
    assert (replies[-1].done, replies[-1].outcome.status, replies[-1].outcome.score) == (True, "graded", 0.0)
    assert replies[-1].outcome.reason == "wrong_answer: test 2"
    over = played(made("repair", LINE, tries=1, cpu_s=0.3), ["def f(x):\n while 1: pass"])[-1]
    assert over.outcome.status == "timeout"
    assert played(made("repair", LINE, tries=1), [" "])[-1].outcome.status == "no_answer"


def test_brief_errors_have_the_characters_of_small_models() -> None:
    replies = played(made("repair", LINE, brief=True), ["def f(x): return Y", RIGHT])
    assert texts(replies) == ["f(1)=10 not error"]


@pytest.mark.parametrize(
    "reference", ["x", {}, {"tests": []}, {"tests": [{"args": [1]}]}, {"tests": [{"args": [1], "expected": 2}]}]
)
def test_a_malformed_row_is_refused(reference: object) -> None:
    with pytest.raises(DataError, match=r"answer.tests"):
        made("repair", reference)


def test_a_broken_sandbox_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(sandbox.Pool):
        isolation = SimpleNamespace(level=2)  # type: ignore[assignment]

        def use(self, act):  # type: ignore[no-untyped-def]
            if self._closed:
                raise IsolationError("closed")
            raise WorkerDied("killed")

    with Broken(workers=1) as pool:
        monkeypatch.setattr("verizero.sandbox.api._pool", pool)
        with pytest.raises(EnvironmentFailed, match="the sandbox failed: killed"):
            _programs.SeparateProcesses(sandbox.Limits()).python("print(1)")
    with pytest.raises(EnvironmentFailed, match="the sandbox cannot run a program"):
        _programs.SeparateProcesses(sandbox.Limits()).python("print(1)")


def test_python_and_shell_print() -> None:
    prompt = Prompt("p", "q", "environment", None)
    run = python.tools(python.Params(cpu_s=0.5), prompt).tools["python"]
    assert run.answer({"code": "print(6*7)"}) == "42"
    assert run.answer({"code": "pass"}) == "no output"
    assert run.answer({"code": "print(1)\n1/0"}).endswith("ZeroDivisionError: division by zero")
    assert run.answer({"code": "while 1: pass"}) == "cpu limit"
    line = shell.tools(shell.Params(), prompt).tools["shell"]
    assert line.answer({"line": "echo $((6*7)); exit 3"}).startswith("42")


def test_a_session_may_take_the_place_of_single_runs() -> None:
    class Session:
        def __init__(self) -> None:
            self.total = 0

        def python(self, code: str) -> Output:
            self.total += int(code)
            return Output("passed", f"{self.total}\n")

        def shell(self, line: str) -> Output:
            return Output("timeout", "begun")

        def close(self) -> None:
            self.total = -1

    session = Session()
    box = Toolbox([*python.over(session).tools.values(), *shell.over(session).tools.values()], [session.close])
    assert [box.tools["python"].answer({"code": "2"}) for _ in range(2)] == ["2", "4"]
    assert box.tools["shell"].answer({"line": "x"}) == "begun\ntimeout"
    box.close()
    assert session.total == -1
