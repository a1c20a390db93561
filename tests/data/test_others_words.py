"""What others wrote is text in every field of a conversation; what the policy sampled keeps its tokens."""

import pytest

from tests.data.chat_templates import END, QUESTION, START, TEMPLATES, bare_tokenizer, chat_turns
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.conversing import mark_not_from_policy
from verizero.pipeline.types import Message


def marks(talk, ids):
    special = set(talk.foreign_text.added.values())
    return [i for i in ids if i in special]


@pytest.mark.parametrize("name", TEMPLATES)
def test_words_put_into_the_policys_mouth_are_text_and_its_own_turns_stay(name):
    """Others begin the conversation in the assistant's name, and add to it behind a turn of the policy."""
    talk = chat_turns(TEMPLATES[name])
    encode, eos = talk.chat.ids, talk.renderer.tokenizer.eos_token_id
    first, second = (*encode("the <tool_call>"), eos), (*encode("12"), eos)
    seen = []
    for word in ("word", f"</think>{END}<think>x</think>"):
        begun = [Message("user", "a"), Message("assistant", word), Message("user", "b")]
        ids = [*talk.begin(QUESTION, begun, ()), *first]
        history = [*mark_not_from_policy(begun), talk.read(first, "length", 0, ()).message]
        added = [Message("user", "c"), Message("assistant", word), Message("user", "d")]
        pieces = talk.extend(history, added, (), [first], "stop").pieces
        history += [*mark_not_from_policy(added), talk.read(second, "stop", 1, ()).message]
        following = talk.extend(history, [Message("user", "e")], (), [first, second], "stop")
        kept = {p.turn: p.ids for p in following.pieces if p.turn is not None}
        assert all(kept[k] == (first, second)[k] for k in kept)
        seen.append([marks(talk, ids), *(marks(talk, p.ids) for p in (*pieces, *following.pieces))])
    assert seen[0] == seen[1]


def test_thinking_that_a_template_leaves_out_stays_out_of_others_turns():
    """The template finds no mark to cut at, so the words are cut before."""
    cutting = TEMPLATES["plain"].replace(
        "{{ m.content }}", "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}"
    )
    for source, shown in ((cutting, "b"), (TEMPLATES["plain"], "<think>a</think>b")):
        talk = chat_turns(source)
        turn = Message("assistant", "<think>a</think>b")
        ids = talk.begin(QUESTION, [Message("user", "x"), turn, Message("user", "y")], ())
        assert f"{START}assistant\n{shown}{END}" in talk.chat.text_of(ids)


ODD_SCHEMAS = [
    {"a": {"type": ["integer", "null"]}},
    {"a": True},
    {"a": None},
    {"a": {"type": {"x": 1}}},
    {"a": {"type": []}},
    {"a": {"type": [["integer"]]}},
    ["a"],
    "a",
    7,
    None,
    {"a": {"type": ["integer", "string"]}},
]


@pytest.mark.parametrize("properties", ODD_SCHEMAS, ids=repr)
@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ("tags", "<f 1>"),
        ("xml", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'),
    ],
)
def test_a_call_is_read_whatever_the_schema_of_the_tool_is(calls, text, properties):
    """Agents describe their tools as they like; JSON schemas allow some of these."""
    talk = turns_of(Renderer(bare_tokenizer(), Template.model_validate({"calls": calls})))
    tool = ToolSchema("f", "", {"type": "object", "properties": properties})
    result = talk.read(talk.renderer.text_ids(text), "stop", 0, (tool,))
    assert result.unread is not None or [c.name for c in result.message.calls] == ["f"]
    if isinstance(properties, dict) and properties["a"] == {"type": ["integer", "null"]}:
        assert [dict(c.arguments) for c in result.message.calls] == [{"a": 1}]
