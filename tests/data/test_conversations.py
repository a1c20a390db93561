"""Conversations of published data: what they become, and the tokens that train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.chat_templates import TEMPLATES, bare_tokenizer
from tests.library import layouts
from verizero.pipeline.config.data import Source
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.conversations import split_conversation, tools_of_row
from verizero.pipeline.data.demonstrated_episodes import demonstration_of
from verizero.pipeline.data.prompts import read_demonstrations
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.errors import DataError
from verizero.pipeline.run.demonstrations import rows_of
from verizero.pipeline.types import Call, Message


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_calls_of_openai_are_calls_and_their_answers_are_in_the_order_of_the_calls() -> None:
    system, question, rest = split_conversation(layouts.openai_tools(1)["messages"])
    assert (system, question) == ("Use the tools.", "1+2, 1+3?")
    assert demonstration_of(rest) == (
        Message("assistant", "", (Call("0-0", "add", {"a": 1, "b": 2}), Call("0-1", "add", {"a": 1, "b": 3}))),
        Message("tool", "3", answers="0-0", name="add"),
        Message("tool", "4", answers="0-1", name="add"),
        Message("assistant", "3 and 4"),
    )


def test_turns_of_sharegpt_with_calls_as_texts() -> None:
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


def test_one_answer_is_a_text_and_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "2?"}]
    assert split_conversation([{"role": "user", "content": parts}, {"role": "assistant", "content": "3"}]) == (
        None,
        "1+2?",
        "3",
    )


def test_the_assistants_turns_alone_train_behind_the_tools_that_the_row_shows(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("1+2?", "a conversation must be a list of messages, got '1+2?'"),
        ([user("a"), user("b")], "this one begins with user, user"),
        ([user(" "), {"role": "assistant", "content": "a"}], "the user's first message of the conversation is empty"),
        (
            [user("a"), {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "the arguments of f must be an object or JSON",
        ),
        ([user("a"), {"role": "assistant", "tool_calls": ["add 1 2"]}], "a call must be an object or JSON"),
        (
            [user("a"), {"role": "assistant", "content": [{"type": "image"}]}],
            "message content must be text, got [{'type': 'image'}]",
        ),
    ],
)
def test_what_cannot_be_read_is_told(value: Any, error: str) -> None:
    with pytest.raises(DataError) as refused:
        split_conversation(value)
    assert error in str(refused.value)


def test_tools_have_a_name() -> None:
    tool = {"name": "f", "description": "", "parameters": {"type": "object"}}
    assert tools_of_row(json.dumps([{"type": "function", "function": tool}])) == (tool,)
    with pytest.raises(DataError, match=r"a tool must be \{name, description, parameters\}, got 'f'"):
        tools_of_row(["f"])
