"""Conversations of published data: what they become, and the tokens that train."""

import json
import random

import pytest

from tests.api import layouts
from tests.data.chat_play import answers, clean_message
from tests.data.chat_templates import ADD, TEMPLATES, THINKING, TOOLS, bare_tokenizer, chat_turns
from verizero.pipeline.config.data import Source
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.conversations import (
    as_value,
    demonstration_of,
    episode_rows,
    split_conversation,
)
from verizero.pipeline.data.prompts import read_demonstrations
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.rows_of_source import row_of
from verizero.pipeline.data.tokenizer import CHARACTERS, character_tokenizer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.errors import DataError
from verizero.pipeline.run.demonstrations import rows_of
from verizero.pipeline.types import Call, Message, Prompt


def user(text):
    return {"role": "user", "content": text}


def test_calls_of_openai_are_calls_and_their_answers_are_in_the_order_of_the_calls():
    system, question, rest = split_conversation(layouts.openai_tools(1)["messages"])
    assert (system, question) == ("Use the tools.", "1+2, 1+3?")
    assert demonstration_of(rest) == (
        Message("assistant", "", (Call("0-0", "add", {"a": 1, "b": 2}), Call("0-1", "add", {"a": 1, "b": 3}))),
        Message("tool", "3", answers="0-0", name="add"),
        Message("tool", "4", answers="0-1", name="add"),
        Message("assistant", "3 and 4"),
    )


def test_turns_of_sharegpt_with_calls_as_texts():
    said = [
        {"from": "system", "value": "Add."},
        {"from": "human", "value": "1+2?"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1, "b": 2}}'},
        {"from": "observation", "value": "3"},
        {"from": "gpt", "value": "It is 3."},
    ]
    system, question, rest = split_conversation(said)
    assert (system, question) == ("Add.", "1+2?")
    assert demonstration_of(rest) == (
        Message("assistant", "", (Call("0-0", "add", {"a": 1, "b": 2}),)),
        Message("tool", "3", answers="0-0", name="add"),
        Message("assistant", "It is 3."),
    )


CALL = {"name": "f", "arguments": '{"a": 1}'}


@pytest.mark.parametrize(
    ("calls", "arguments"),
    [
        ({"function_call": CALL}, {"a": 1}),
        ({"function_call": CALL, "tool_calls": None}, {"a": 1}),
        ({"tool_calls": json.dumps([{"id": "x", "function": CALL}]), "function_call": None}, {"a": 1}),
        ({"tool_calls": [{"function": {"name": "f", "arguments": ""}}]}, {}),
        ({"tool_calls": [{"function": {"name": "f", "arguments": {"a": None}}}]}, {"a": None}),
    ],
)
def test_a_call_in_any_form_is_a_call(calls, arguments):
    answered = {"role": "function", "name": "f", "content": "1"}
    said = [
        user("f?"),
        {"role": "assistant", "content": None, **calls},
        answered,
        {"role": "assistant", "content": "1"},
    ]
    assert demonstration_of(split_conversation(said)[2]) == (
        Message("assistant", "", (Call("0-0", "f", arguments),)),
        Message("tool", "1", answers="0-0", name="f"),
        Message("assistant", "1"),
    )


def test_one_answer_is_a_text_and_parts_are_joined():
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "2?"}]
    assert split_conversation([{"role": "user", "content": parts}, {"role": "assistant", "content": "3"}]) == (
        None,
        "1+2?",
        "3",
    )


def test_the_assistants_turns_alone_train_behind_the_tools_that_the_row_shows(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(layouts.openai_tools(i)) + "\n" for i in range(2)))
    mapping = {"conversation": "messages", "tools": "tools", "id": None}
    given = Source.model_validate({"file": "rows.jsonl", "mapping": mapping, "graded": False})
    prompts = read_demonstrations((), [given], 0, tmp_path).prompts
    assert [p.verifier for p in prompts] == ["", ""]
    tokenizer = bare_tokenizer()
    tokenizer.chat_template = TEMPLATES["plain"]
    ((row, *_), _) = rows_of(Renderer(tokenizer, Template(name="chat", calls="hermes")), None, prompts)
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 0, "b": %d}}\n</tool_call>'
    trained = [tokenizer.decode(list(row.ids[begin:end])) for begin, end in row.spans]
    assert trained == [f"{call % 2}\n{call % 3}<|im_end|>", "2 and 3<|im_end|>"]
    text = tokenizer.decode(list(row.ids))
    assert text.startswith(
        '<|im_start|>system\n[{"type": "function", "function": {"name": "add", "description": "Add."'
    )
    assert "<|im_start|>tool\n2<|im_end|>\n<|im_start|>tool\n3<|im_end|>" in text


ADDED = [
    {"role": "assistant", "content": "so ", "calls": [{"name": "add", "arguments": {"a": 27, "b": 58}}]},
    {"role": "tool", "content": "85"},
    {"role": "assistant", "content": "85"},
]
PLAIN = turns_of(Renderer(character_tokenizer(CHARACTERS), Template()))


def prompt_of(messages):
    return Prompt("s", "27+58=", "math", "85", demonstration=demonstration_of(messages))


def played(talk, prompt, tools):
    """The rows of a policy that says the demonstration, with the places that it sampled, by the protocol alone."""
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


def as_played(rows):
    return [(ids, {t for begin, end in spans for t in range(begin, end)}) for ids, spans in rows]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_tokens_are_those_of_a_policy_that_says_the_same(name):
    talk = chat_turns(TEMPLATES[name])
    forks = 0
    for seed in range(12):
        rng = random.Random(seed)
        messages = []
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


def test_rows_are_read_and_written_back(tmp_path):
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
    as_sampled = as_played([(made[0].ids, made[0].spans)])
    assert as_sampled == played(PLAIN, prompts[0], ()) == played(PLAIN, prompts[0], (ADD,))
    assert (counts.num_loaded, counts.skipped) == (2, {})
    made, counts = rows_of(renderer, 20, prompts)
    assert [renderer.decode(row.ids) for row in made] == ["1+1=2"]
    assert (counts.num_loaded, counts.skipped) == (1, {"past the context": 1})
    with pytest.raises(DataError, match="'a' is an episode"):
        renderer.demonstration_ids(prompts[0])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"content": "<mul 1 2>"}, "turn 1 .* 's' would not be read: there is no tool mul"),
        ({"calls": [{"name": "add", "arguments": {"b": 1}}]}, "turn 1 .* 's': .*order of its properties"),
        ({"content": "é"}, "'é'"),
    ],
)
def test_a_turn_that_the_policy_cannot_say_is_refused(message, reason):
    with pytest.raises(DataError, match=reason):
        episode_rows(PLAIN, prompt_of([{"role": "assistant", **message}]), (ADD,))
