"""Programs of the policy in the sandbox: on tests, as tools, in a session, and on services."""

from types import SimpleNamespace

import pytest

from tests.environments.talk import made, played, texts
from verizero import sandbox
from verizero.pipeline.config.choices import EnvironmentChoice
from verizero.pipeline.environments.base import Reply
from verizero.pipeline.environments.tool_use import Params, environment
from verizero.pipeline.environments.tools import _programs, python, session, shell
from verizero.pipeline.errors import DataError, EnvironmentFailed, IsolationError
from verizero.pipeline.run.episodes import languages_of
from verizero.pipeline.types import Call, Message, Prompt
from verizero.sandbox import settings
from verizero.sandbox.process import WorkerDied
from verizero.sandbox.serve import SandboxService
from verizero.sandbox.settings import SandboxSettings, configure

LINE = {"fn": "f", "tests": [{"args": [x], "expected": 3 * x + 7} for x in range(1, 6)]}
STDIN = {"tests": [{"input": "3\n", "output": "6\n"}, {"input": "4\n", "output": "8\n"}]}
RIGHT = "def f(x): return 3*x+7"

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("default_sandbox")]


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
def test_the_first_failing_test_is_shown(program, shown):
    environment = made("repair", LINE, cpu_s=0.3)
    replies = played(environment, [program, f"<think>slope</think>\n```python\n{RIGHT}\n```\nOutput:\n```\n13\n```"])
    (text,) = texts(replies)
    assert text.startswith(shown)
    assert replies[-1].outcome.is_correct


def test_programs_on_standard_input():
    replies = played(made("repair", STDIN), ["print(int(input())+3)", "print(int(input())*2)"])
    assert texts(replies) == ["input:\n4\n\nexpected:\n8\n\ngot:\n7"]
    assert replies[-1].outcome.is_correct


def test_the_tries_end_with_a_verdict_and_feedback_may_be_left_out():
    replies = played(made("repair", LINE, tries=2, feedback=False), ["def f(x): return x", "def f(x): return 10"])
    assert texts(replies) == ["wrong, try again"]
    assert (replies[-1].done, replies[-1].outcome.status, replies[-1].outcome.score) == (True, "graded", 0.0)
    assert replies[-1].outcome.reason == "wrong_answer: test 2"
    over = played(made("repair", LINE, tries=1, cpu_s=0.3), ["def f(x):\n while 1: pass"])[-1]
    assert over.outcome.status == "timeout"
    assert played(made("repair", LINE, tries=1), [" "])[-1].outcome.status == "no_answer"


def test_brief_errors_have_the_characters_of_small_models():
    replies = played(made("repair", LINE, brief=True), ["def f(x): return Y", RIGHT])
    assert texts(replies) == ["f(1)=10 not error"]


@pytest.mark.parametrize(
    "reference", ["x", {}, {"tests": []}, {"tests": [{"args": [1]}]}, {"tests": [{"args": [1], "expected": 2}]}]
)
def test_a_malformed_row_is_refused(reference):
    with pytest.raises(DataError, match=r"answer.tests"):
        made("repair", reference)


def test_a_broken_sandbox_is_no_wrong_answer(monkeypatch):
    class Broken(sandbox.Pool):
        isolation = SimpleNamespace(level=2)

        def use(self, act):
            if self._closed:
                raise IsolationError("closed")
            raise WorkerDied("killed")

    with Broken(workers=1) as pool:
        monkeypatch.setattr("verizero.sandbox.pool._default", pool)
        with pytest.raises(EnvironmentFailed, match="the sandbox failed: killed"):
            _programs.alone("print(1)", sandbox.Limits())
    with pytest.raises(EnvironmentFailed, match="the sandbox cannot run a program"):
        _programs.alone("print(1)", sandbox.Limits())


def test_python_and_shell_print():
    prompt = Prompt("p", "q", "environment", None)
    run = python.tools(python.Params(cpu_s=0.5), prompt).tools["python"]
    assert run.answer({"code": "print(6*7)"}) == "42"
    assert run.answer({"code": "pass"}) == "no output"
    assert run.answer({"code": "print(1)\n1/0"}).endswith("ZeroDivisionError: division by zero")
    assert run.answer({"code": "while 1: pass"}) == "cpu limit"
    line = shell.tools(shell.Params(), prompt).tools["shell"]
    assert line.answer({"line": "echo $((6*7)); exit 3"}).startswith("42")


PROMPT = Prompt("p", "?", "exact", "x")


def call(name: str, **arguments: str) -> Message:
    return Message("assistant", "", (Call("0-0", name, arguments),))


@pytest.fixture
def episodes():
    made = [environment(Params.model_validate({"tools": ["session"]}), PROMPT, 0, i) for i in range(2)]
    yield made
    for episode in made:
        episode.close()
        episode.close()


def text(reply: Reply) -> str:
    (message,) = reply.messages
    return message.content


def test_calls_of_an_episode_share_a_session_and_episodes_do_not(episodes):
    one, two = episodes
    for episode in (one, two):
        episode.start()

    def said(episode, message):
        return text(episode.step(message))

    assert said(one, call("python", code="x = 40\nopen('note', 'w').write('hi')")) == "no output"
    assert said(one, call("python", code="print(x + 2)")) == "42"
    assert said(one, call("shell", line="cat note; echo; echo more >> note; wc -l < note")).split() == ["hi", "1"]
    assert "NameError" in said(two, call("python", code="print(x)"))
    assert "No such file" in said(two, call("shell", line="cat note"))
    assert "ZeroDivisionError" in said(one, call("python", code="1 / 0"))
    assert said(one, call("python", code="print(x)")) == "40", "an exception ends the cell, not the session"


def test_the_policys_own_mistakes_are_observations(episodes):
    kept = session.SessionPrograms(session.Params(cpu_s=1, wall_s=3, calls=3))
    try:
        assert "limit" in kept.python("while True: pass").text or "timeout" in kept.python("1").text
        assert kept.python("print('again')").text == "again"
    finally:
        kept.close()


SHORT = {"fn": "f", "tests": [{"args": [x], "expected": 3 * x + 7} for x in range(1, 4)]}
EMPTY = Prompt("p", "q", "environment", None)


def test_where_programs_run_on_services(monkeypatch):
    """Tools and repair do; a session is not opened; a service that refuses is no mistake of the policy."""
    monkeypatch.setattr("verizero.sandbox.api.run_many", lambda *_, **__: pytest.fail("nothing runs on this machine"))
    with sandbox.Pool(workers=1) as pool, SandboxService(pool) as server:
        configure(SandboxSettings(urls=(server.address,), token=server.token))
        run = python.tools(python.Params(), EMPTY).tools["python"]
        assert run.answer({"code": "print(6*7)"}) == "42"
        last = played(made("repair", SHORT), ["def f(x): return 3*x+8", "def f(x): return 3*x+7"])[-1]
        assert (last.outcome.score, server.num_programs) == (1.0, 3)
        with pytest.raises(EnvironmentFailed, match="the tool `session` keeps a state"):
            session.tools(session.Params(), EMPTY).tools["python"].answer({"code": "1"})
        configure(SandboxSettings(urls=(server.address,), token="guess"))
        with pytest.raises(EnvironmentFailed, match="401"):
            run.answer({"code": "1"})


def test_settings_cross_to_another_process_whole():
    given = SandboxSettings(sandbox.Limits(cpu_s=0.5), 3, 1, ("http://a:1",), "secret")
    configure(given)
    variables = settings.variables()
    configure(SandboxSettings())
    settings.take_over(variables)
    assert settings.current() == given


@pytest.mark.parametrize(
    ("choice", "languages"),
    [
        ({"name": "guess"}, set()),
        ({"name": "repair"}, {"python"}),
        ({"name": "tool_use", "params": {"tools": ["sql", "shell"]}}, {"bash"}),
        ({"name": "tool_use", "params": {"tools": ["session"]}}, {"python", "bash", "session"}),
    ],
)
def test_languages_of_environments_are_known_before_training(choice, languages):
    chosen = {"mine": EnvironmentChoice(**choice)}
    rows = [SimpleNamespace(environment=key) for key in ("mine", None)]
    assert languages_of(rows, chosen, None) == languages
