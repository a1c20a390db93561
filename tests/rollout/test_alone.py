"""Environments that bring what cannot be shown: their episode alone has no reward, and the others end as they would."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.data.chat_templates import END, TEMPLATES, bare_tokenizer
from tests.scripted_engine import ScriptedEngine
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.environments.base import Reply, Start, ToolSchema
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.episode import EpisodeLimits
from verizero.pipeline.rollout.play import EpisodeSetup, play
from verizero.pipeline.types import Call, Message, Prompt, Rollout, Verdict

GOOD = Prompt("good", "1+1=", "environment", "2", environment="good")
BAD = Prompt("bad", "1+1=", "environment", "2", environment="bad")
USER = Message("user", "hi")


def scripted(start: Start, reply: Reply) -> Any:
    """An environment that begins and answers as it was told."""
    episode = SimpleNamespace(start=lambda: start, step=lambda message: reply, close=lambda: None)
    return SimpleNamespace(make=lambda *_: episode)


DONE = Reply((), done=True, outcome=Verdict("graded", 1.0, "right"))
ODD: dict[str, Any] = {"number": 7, "list": ["a"], "object": {"a": 1}, "none": None}
STARTS = {
    **{f"content {name}": Start((Message("user", value),)) for name, value in ODD.items()},
    **{f"assistant {name}": Start((USER, Message("assistant", value), USER)) for name, value in ODD.items()},
    **{
        f"call {name}": Start((USER, Message("assistant", "", (Call("0-0", value, {"a": 1}),)), USER))
        for name, value in ODD.items()
    },
    **{
        f"arguments {name}": Start((USER, Message("assistant", "", (Call("0-0", "f", value),)), USER))
        for name, value in ODD.items()
        if name != "object"
    },
    "half a pair": Start((USER, Message("assistant", "\ud800"), USER)),
    "half a pair in a call": Start((USER, Message("assistant", "", (Call("1", "\ud800", {"\udc00": 1}),)), USER)),
    "ends with the assistant": Start((USER, Message("assistant", "x"))),
    "begins with a tool": Start((Message("tool", "x", answers="1"), USER)),
    "tools": Start((USER,), (ToolSchema("f", "", {"properties": {1: {2: {3}}}}),)),
    "parameters": Start((USER,), (ToolSchema("f", "", 7),)),
    "self": Start((USER,), (7,)),
    "schema of a list": Start((USER,), (ToolSchema("f", END, {"type": "object", "properties": ["a"]}),)),
}
REPLIES = {
    **{f"answer {name}": Reply((Message("tool", value, answers="0-0"),)) for name, value in ODD.items()},
    "history ends with the assistant": Reply(history=(USER, Message("assistant", "x"))),
    "history of nothing": Reply(history=()),
    "history half a pair": Reply(history=(USER, Message("assistant", "\ud800"), USER)),
    "history of numbers": Reply(history=(7,)),
    "tools of history": Reply(history=(USER,), tools=(ToolSchema("f", "", {"properties": {(1, 2): 3}}),)),
    "counts": Reply((USER,), counts={"a": "b"}),
    "uses": Reply((USER,), uses=(7,)),
    "empty": Reply((Message("user", ""),)),
}


def played(threads: Any, template: dict[str, Any], start: Start, reply: Reply) -> list[Rollout]:
    tokenizer = bare_tokenizer()
    tokenizer.chat_template = TEMPLATES["plain"]
    talk = turns_of(Renderer(tokenizer, Template.model_validate(template)))
    eos = tokenizer.eos_token_id
    engine = ScriptedEngine(lambda ids, seed: (*tokenizer("<f 1>")["input_ids"], eos), eos)
    engine.publish(1)
    makers = {"good": scripted(Start((USER,)), DONE), "bad": scripted(start, reply)}
    episodes = EpisodeSetup(makers, talk, EpisodeLimits(max_turns=2, retries=0), threads)
    return play(engine, episodes, [GOOD, BAD, GOOD], 1, Sampling(20), 0, "rl")


CASES = {name: (start, DONE) for name, start in STARTS.items()}
CASES |= {name: (Start((USER,)), reply) for name, reply in REPLIES.items()}


@pytest.mark.parametrize(
    "template", [{"name": "chat", "calls": "tags"}, {"name": "plain", "calls": "xml"}], ids=["chat", "plain"]
)
@pytest.mark.parametrize(("start", "reply"), CASES.values(), ids=CASES)
def test_a_beginning_or_an_answer_that_cannot_be_shown_ends_its_episode_alone(threads, start, reply, template):
    """The bad one is right or has no reward, and is no zero."""
    first, bad, last = [r.episode for r in played(threads, template, start, reply)]
    assert [first.outcome, last.outcome] == [DONE.outcome] * 2
    assert bad.ending in ("done", "turns", "failed")
    if bad.ending == "failed":
        assert bad.outcome.status == "environment_error"
        assert bad.outcome.reason
