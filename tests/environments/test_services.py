"""Programs of environments run where the recipe says: on services, in this process and in one that plays episodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.environments.talk import made, played
from verizero import sandbox
from verizero.pipeline.config.choices import EnvironmentChoice
from verizero.pipeline.environments.hosts import EnvironmentSpec, open_host
from verizero.pipeline.environments.tools import python, session
from verizero.pipeline.errors import EnvironmentFailed
from verizero.pipeline.run.episodes import languages_of
from verizero.pipeline.types import Message, Prompt
from verizero.sandbox import settings
from verizero.sandbox.serve import SandboxService
from verizero.sandbox.settings import SandboxSettings, configure

LINE = {"fn": "f", "tests": [{"args": [x], "expected": 3 * x + 7} for x in range(1, 4)]}
PROMPT = Prompt("p", "q", "environment", None)

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def back_to_default() -> Iterator[None]:
    yield
    configure(SandboxSettings())


@contextmanager
def served() -> Iterator[SandboxService]:
    with sandbox.Pool(workers=1) as pool, SandboxService(pool) as server:
        yield server


def at(server: SandboxService, token: str | None = None) -> SandboxSettings:
    return SandboxSettings(urls=(server.address,), token=token or server.token)


def test_tools_and_repair_run_their_programs_on_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as server:
        monkeypatch.setattr(
            "verizero.sandbox.api.run_many", lambda *_, **__: pytest.fail("nothing runs on this machine")
        )
        configure(at(server))
        run = python.tools(python.Params(), PROMPT).tools["python"]
        assert run.answer({"code": "print(6*7)"}) == "42"
        last = played(made("repair", LINE), ["def f(x): return 3*x+8", "def f(x): return 3*x+7"])[-1]
        assert (last.outcome.score, sum(server.statuses.values())) == (1.0, 3)


def test_a_session_is_opened_on_the_service_and_keeps_its_state() -> None:
    with served() as server:
        configure(at(server))
        box = session.tools(session.Params(), PROMPT)
        assert box.tools["python"].answer({"code": "x = 41; open('a', 'w').write('b')"}) == "no output"
        assert box.tools["python"].answer({"code": "print(x + 1)"}) == "42"
        assert box.tools["shell"].answer({"line": "cat a"}) == "b"
        assert len(server.sessions) == 1
        box.close()
        assert len(server.sessions) == 0


def test_a_service_that_refuses_is_no_mistake_of_the_policy() -> None:
    with served() as server:
        configure(at(server, "guess"))
        with pytest.raises(EnvironmentFailed, match="401"):
            session.tools(session.Params(), PROMPT).tools["python"].answer({"code": "1"})
        with pytest.raises(EnvironmentFailed, match="401"):
            python.tools(python.Params(), PROMPT).tools["python"].answer({"code": "1"})


def test_a_process_that_plays_episodes_takes_the_settings_over() -> None:
    with served() as server:
        configure(at(server))
        place = open_host("process", EnvironmentSpec("repair"), step_s=30)
        try:
            environment = place.make(Prompt("p", "f", "environment", LINE), 0, 0)
            environment.start()
            reply = environment.step(Message("assistant", "def f(x): return 3*x+7"))
            environment.close()
        finally:
            place.close()
        assert reply.outcome is not None
        assert (reply.outcome.score, sum(server.statuses.values())) == (1.0, 1)


def test_settings_cross_to_another_process_whole() -> None:
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
        ({"name": "tool_use", "params": {"tools": ["calculator", "shell"]}}, {"bash"}),
        ({"name": "tool_use", "params": {"tools": ["session"]}}, {"python", "bash"}),
        ({"name": "repair", "place": {"url": "http://a:1"}}, set()),
    ],
)
def test_languages_of_environments_are_known_before_training(choice: dict[str, Any], languages: set[str]) -> None:
    chosen = {"mine": EnvironmentChoice(**choice)}
    rows = [SimpleNamespace(environment=key) for key in ("mine", None)]
    assert languages_of(rows, chosen, None) == languages  # type: ignore[arg-type]
