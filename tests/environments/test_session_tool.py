"""The tool `session`: what one call leaves is there at the next, and nothing of one episode in another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from verizero.pipeline.environments.base import Reply
from verizero.pipeline.environments.tool_use import Params, environment
from verizero.pipeline.environments.tools import session
from verizero.pipeline.types import Call, Message, Prompt

pytestmark = pytest.mark.integration
PROMPT = Prompt("p", "?", "exact", "x")


def call(name: str, **arguments: str) -> Message:
    return Message("assistant", "", (Call("0-0", name, arguments),))


@pytest.fixture
def episodes() -> Iterator[list[object]]:
    made = [environment(Params.model_validate({"tools": ["session"]}), PROMPT, 0, i) for i in range(2)]
    yield made
    for episode in made:
        episode.close()
        episode.close()


def text(reply: Reply) -> str:
    (message,) = reply.messages
    return message.content


def test_calls_of_an_episode_share_a_session_and_episodes_do_not(episodes: list[object]) -> None:
    one, two = episodes
    for episode in (one, two):
        episode.start()  # type: ignore[attr-defined]

    def said(episode: object, message: Message) -> str:
        return text(episode.step(message))  # type: ignore[attr-defined]

    assert said(one, call("python", code="x = 40\nopen('note', 'w').write('hi')")) == "no output"
    assert said(one, call("python", code="print(x + 2)")) == "42"
    assert said(one, call("shell", line="cat note; echo; echo more >> note; wc -l < note")).split() == ["hi", "1"]
    assert "NameError" in said(two, call("python", code="print(x)"))
    assert "No such file" in said(two, call("shell", line="cat note"))
    assert "ZeroDivisionError" in said(one, call("python", code="1 / 0"))
    assert said(one, call("python", code="print(x)")) == "40", "an exception ends the cell, not the session"


def test_the_policys_own_mistakes_are_observations(episodes: list[object]) -> None:
    kept = session.SessionPrograms(session.Params(cpu_s=1, wall_s=3, calls=3))
    try:
        assert "limit" in kept.python("while True: pass").text or "timeout" in kept.python("1").text
        assert kept.python("print('again')").text == "again"
    finally:
        kept.close()
