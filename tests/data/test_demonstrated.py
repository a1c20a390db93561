"""Demonstrated episodes: read from rows, and in tokens exactly those of a policy that says the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.data.chat_play import answers, clean_message
from tests.data.chat_templates import ADD, TEMPLATES, THINKING, TOOLS, chat_turns
from verizero.pipeline.config.data import Source
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.demonstrated_episodes import as_value, demonstration_of, episode_rows
from verizero.pipeline.data.prompts import read_demonstrations
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.source_rows import row_of
from verizero.pipeline.data.tokenizer import CHARACTERS, character_tokenizer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.environments.conversing import Conversing
from verizero.pipeline.errors import DataError
from verizero.pipeline.run.demonstrations import rows_of
from verizero.pipeline.types import Call, Message, Prompt

ADDED = [
    {"role": "assistant", "content": "so ", "calls": [{"name": "add", "arguments": {"a": 27, "b": 58}}]},
    {"role": "tool", "content": "85"},
    {"role": "assistant", "content": "85"},
]
PLAIN = turns_of(Renderer(character_tokenizer(CHARACTERS), Template()))


def prompt_of(messages: Any) -> Prompt:
    return Prompt("s", "27+58=", "math", "85", demonstration=demonstration_of(messages))


def played(talk: Conversing, prompt: Prompt, tools: Any) -> list[tuple[tuple[int, ...], set[int]]]:
    """The rows of a policy that says the demonstration, with the places that it sampled, by the protocol alone."""
    assert isinstance(prompt.demonstration, tuple)
    rows = [(list(talk.begin(prompt, (), tools)), set[int]())]
    history, sampled = list(talk.opening(prompt, ())), []
    todo = list(prompt.demonstration)
    while todo:
        words = talk.write(todo.pop(0), tools)
        ids, places = rows[-1]
        places.update(range(len(ids), len(ids) + len(words)))
        ids.extend(words)
        history.append(talk.read(words, "stop", len(sampled), tools).message)
        sampled.append(words)
        new = []
        while todo and todo[0].role != "assistant":
            new.append(todo.pop(0))
        if new:
            following = talk.extend(history, new, tools, sampled, "stop")
            if following.fork is not None:
                rows.append(([], set()))
            rows[-1][0].extend(i for piece in following.pieces for i in piece.ids)
            history += new
    return [(tuple(ids), places) for ids, places in rows]


def as_played(rows: Any) -> list[tuple[tuple[int, ...], set[int]]]:
    return [(ids, {t for begin, end in spans for t in range(begin, end)}) for ids, spans in rows]


def test_an_episode_in_characters() -> None:
    prompt = prompt_of(ADDED)
    ((ids, spans),) = episode_rows(PLAIN, prompt)
    tokenizer = character_tokenizer(CHARACTERS)
    assert tokenizer.decode(list(ids)) == "27+58=so <add 27 58><eos>\n85\n85<eos>"
    assert [tokenizer.decode(list(ids[a:b])) for a, b in spans] == ["so <add 27 58><eos>", "85<eos>"]
    assert as_played([(ids, spans)]) == played(PLAIN, prompt, ()) == played(PLAIN, prompt, (ADD,))


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_tokens_are_those_of_a_policy_that_says_the_same(name: str) -> None:
    talk = chat_turns(TEMPLATES[name])
    forks = 0
    for seed in range(12):
        rng = random.Random(seed)
        messages: list[Message] = []
        for turn in range(3):
            message = clean_message(rng, turn, name in THINKING, rng.randrange(3))
            messages += [message, *answers(rng, message, spoofs=0.5)]
        messages.append(Message("assistant", "done"))
        prompt = Prompt("s", "What is 1+2?", "math", "3", demonstration=tuple(messages))
        rows = episode_rows(talk, prompt, TOOLS)
        assert as_played(rows) == played(talk, prompt, TOOLS)
        trained = sum(end - begin for _, spans in rows for begin, end in spans)
        assert trained == sum(len(talk.write(m, TOOLS)) for m in messages if m.role == "assistant")
        forks += len(rows) - 1
    assert (forks > 0) == (name in THINKING)


def test_rows_are_read_and_written_back(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "question": "27+58=", "answer": "85", "verifier": "math", "demonstration": ADDED},
        {"id": "b", "question": "1+1=", "answer": "2", "verifier": "math", "demonstration": "2"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = read_demonstrations([Source(file="rows.jsonl")], (), 0, tmp_path).prompts
    assert prompts[0].demonstration == (
        Message("assistant", "so ", (Call("0-0", "add", {"a": 27, "b": 58}),)),
        Message("tool", "85", answers="0-0", name="add"),
        Message("assistant", "85"),
    )
    assert [row_of(p) for p in prompts] == [{**row, "domain": "default"} for row in rows]
    assert demonstration_of(as_value(prompts[0].demonstration)) == prompts[0].demonstration
    renderer = Renderer(character_tokenizer(CHARACTERS), Template())
    made, counts = rows_of(renderer, None, prompts)
    assert [renderer.decode(row.ids) for row in made] == ["27+58=so <add 27 58>\n85\n85", "1+1=2"]
    assert [row.num_trained for row in made] == [len("so <add 27 58>|85|"), len("2|")]
    assert (made[0].ids, made[0].spans) == episode_rows(PLAIN, prompts[0])[0]
    assert (counts.num_loaded, counts.skipped) == (2, {})
    made, counts = rows_of(renderer, 20, prompts)
    assert [renderer.decode(row.ids) for row in made] == ["1+1=2"]
    assert (counts.num_loaded, counts.skipped) == (1, {"past the context": 1})
    with pytest.raises(DataError, match="'a' is an episode"):
        renderer.demonstration_ids(prompts[0])


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (ADDED[:2], "begins and ends with an assistant's message, got assistant, tool"),
        (ADDED[1:], "got tool, assistant"),
        ([ADDED[2], ADDED[2]], "follow each other"),
        ([{"role": "system", "content": "x"}], "message 1 .*role of assistant, user, tool"),
        ([{"role": "assistant", "content": 5}], "message 1"),
        ([{"role": "assistant", "text": "5"}], "has keys text; known are calls"),
        (
            [ADDED[2], {"role": "user", "content": "?", "calls": ADDED[0]["calls"]}, ADDED[2]],
            "message 2 .*role is user",
        ),
        ([{"role": "assistant", "calls": [{"name": "add", "a": 1}]}], "a call in message 1"),
        ([{"role": "assistant", "calls": [{"name": "add", "arguments": [1]}]}], "must be an object"),
    ],
)
def test_what_is_no_episode_is_refused(messages: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        demonstration_of(messages)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"content": "<mul 1 2>"}, "turn 1 .* 's' would not be read: there is no tool mul"),
        ({"calls": [{"name": "add", "arguments": {"b": 1}}]}, "turn 1 .* 's': .*order of its properties"),
        ({"content": "é"}, "'é'"),
    ],
)
def test_a_turn_that_the_policy_cannot_say_is_refused(message: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        episode_rows(PLAIN, prompt_of([{"role": "assistant", **message}]), (ADD,))
